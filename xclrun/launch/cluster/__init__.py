"""Runs on a Slurm cluster: what is written at submission, what a job does with it, and what Slurm says."""
