"""Checkpoints: complete states of a run, published in the artifact store."""
