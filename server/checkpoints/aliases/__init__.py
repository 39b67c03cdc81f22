"""Aliases: names of checkpoints that can be moved, as `champion`."""
