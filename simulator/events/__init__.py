"""Discrete events: one training step played action by action."""
