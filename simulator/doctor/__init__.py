"""Self-check: identities that every answer obeys, over profiles and models that fit together."""
