"""Datasets: examples, readers, buckets, encoding and batching, and the embedded corpus ``mini``."""
