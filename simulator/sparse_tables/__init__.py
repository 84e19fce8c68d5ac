"""Recommender-like models: tables of which a step reads few rows, beside a small dense model."""
