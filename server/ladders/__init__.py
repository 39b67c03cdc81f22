"""Ladders: who played whom, how it ended, and how strong that makes everybody."""
