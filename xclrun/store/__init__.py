"""Files of record: run directories, the store of stages, prediction files; all written atomically."""
