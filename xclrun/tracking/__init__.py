"""Mirrors of the files of record: MLflow, Weights & Biases, TensorBoard."""
