"""The networks of a collector in numpy: a module for each of `worker.learning.networks`, for acting alone."""
