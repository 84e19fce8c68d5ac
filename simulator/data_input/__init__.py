"""The input of a training run: what samples are, who prepares them, where they are read from."""
