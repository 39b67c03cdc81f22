"""Metrics: the newest value of each key, and its history."""
