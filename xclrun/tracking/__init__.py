"""MLflow as a mirror of the files of record."""
