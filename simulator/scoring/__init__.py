"""Predicted against measured: errors, rankings, baselines."""
