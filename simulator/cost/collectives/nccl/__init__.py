"""NCCL's algorithms, a module each, and the machine as its choice sees it."""
