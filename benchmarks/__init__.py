"""Benchmarks: ratios of two times that are measured alternately in one process, so the machine's load cancels out."""
