"""Launches builds of games, watches them, and connects them to a run."""
