"""The end of attempts, and the recovery of runs whose worker is lost."""
