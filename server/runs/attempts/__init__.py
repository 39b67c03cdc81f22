"""Executions of runs by workers: the queue that hands them out, the ledger that attempts write into, the leases."""
