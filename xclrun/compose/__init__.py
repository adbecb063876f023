"""From what was typed to typed configs: overrides, sweeps, Hydra, and what is said of mistakes in them."""
