"""The writes of an attempt: of one execution of a run by a worker."""
