"""Scripts as the shell would read them, and the command that trains."""
