"""A teacher whose outputs a student learns from."""
