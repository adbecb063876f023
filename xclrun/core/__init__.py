"""Names, errors, IDs, streams and tasks for all other packages. Imports neither torch nor Hydra."""
