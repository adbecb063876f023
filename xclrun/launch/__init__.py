"""Doing runs: sweep → launcher (in this process, in workers, or on a Slurm cluster); how far they are, what is left."""
