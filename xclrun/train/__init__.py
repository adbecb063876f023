"""Training and evaluation: `execute` (a run), `loop` (one hop), `evaluate`, `optimize`."""
