"""Names, errors, identities and tasks that all other packages use; no files of a run, no torch, no Hydra."""
