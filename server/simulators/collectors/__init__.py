"""The collectors of a run's live attempt: where they are, and what they serve."""
