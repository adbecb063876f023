"""From the command line to typed configs: overrides, sweeps, Hydra, and messages for mistakes."""
