"""xclrun: cross-lingual continual learning experiments, from one command to a reviewed table."""

__version__ = "0.1.0"
