"""Logs of training runs and of collectives."""
