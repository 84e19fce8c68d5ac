"""Failures, checkpoints and what they leave of a run: facts, rules and closed forms."""
