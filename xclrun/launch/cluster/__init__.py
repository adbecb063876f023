"""Runs on a Slurm cluster: packs of runs, submission, the jobs, and their states."""
