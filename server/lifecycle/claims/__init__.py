"""Claims: the queue that hands waiting runs to workers, and what a worker gets with a run."""
