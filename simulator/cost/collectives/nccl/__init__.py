"""NCCL's algorithms, and the machine as its choice sees it."""
