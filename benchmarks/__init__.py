"""Benchmarks: ratios, each of two things timed in turn in one process, so that the machine's mood cancels out."""
