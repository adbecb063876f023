"""Running sweeps: launchers (this process, workers, Slurm), progress, status, forecasts."""
