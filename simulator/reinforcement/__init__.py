"""A step of reinforcement learning: generation, scoring, training, moving weights, and overlap."""
