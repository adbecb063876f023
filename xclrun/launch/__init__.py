"""Doing runs: here, in worker processes or on a Slurm cluster; how far they are, and how long they will take."""
