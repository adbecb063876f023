"""Compose typed configs from the command line: overrides, sweeps, Hydra, and error messages."""
