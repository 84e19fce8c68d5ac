"""Whether a job may start as it is asked for: memory, end, money."""
