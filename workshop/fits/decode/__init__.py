"""Kernels of engines: rows, fit, left-out error, profiles."""
