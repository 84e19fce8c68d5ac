"""Whole runs of weeks and months, played from interruption to interruption."""
