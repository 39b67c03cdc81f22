"""Retention: which checkpoints may go, and the removal of what is no longer needed from the artifact store."""
