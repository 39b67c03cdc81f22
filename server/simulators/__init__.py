"""Connected and former simulators, and their placement on a run's live attempt."""
