"""Reports: they read result files and nothing else."""
