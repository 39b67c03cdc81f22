"""Profiles of running runs: sampled stacks of a trainer and its collectors as a flame graph."""
