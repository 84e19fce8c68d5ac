"""Traces of a run: torch's profiler, Nsight Systems, Chakra, Perfetto."""
