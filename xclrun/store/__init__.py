"""Run directories, the store of stages, and prediction files; all are written atomically."""
