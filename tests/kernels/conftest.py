"""`pretended_gpu.py` is a program that tests start; it needs torch."""

collect_ignore = ["pretended_gpu.py"]
