"""xclrun's Hydra plugins: a thin face, since Hydra takes plugin classes only from this namespace."""
