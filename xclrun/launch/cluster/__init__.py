"""Runs on a Slurm cluster: packing, submission by Submitit, the jobs, and their states."""
