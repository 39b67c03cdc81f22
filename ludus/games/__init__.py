"""Launches builds of games, watches their processes, and connects them to a run."""
