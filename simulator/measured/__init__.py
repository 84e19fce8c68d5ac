"""Measured tables: reading them, and turning their rows into what can be predicted."""
