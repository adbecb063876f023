"""Words, names and identities that everything else stands on: no files of a run, no torch, no Hydra."""
