"""What launch scripts and trainer configurations say, as fields of a scenario: read, never run."""
