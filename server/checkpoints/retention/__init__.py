"""Retention: rules for deleting checkpoints, and the removal of their files from the artifact store."""
