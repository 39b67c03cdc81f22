"""Executions of runs by workers: the queue that hands out runs, and the writes of an attempt."""
