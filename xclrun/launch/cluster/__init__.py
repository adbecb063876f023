"""Runs on a Slurm cluster: packing, submission, the jobs, and their states."""
