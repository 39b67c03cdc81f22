"""Comparisons for any machine: ratios of programs that run in turn on it."""
