"""Training over several sites: what passes between them, how often, and what it takes."""
