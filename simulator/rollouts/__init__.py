"""What a step of reinforcement learning asks for: its sections, lengths of answers, profiles."""
