"""Checkpoints of runs: their rows, files, aliases and retention."""
