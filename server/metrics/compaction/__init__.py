"""Compaction: the tail of a run's metrics becomes chunks and newest values."""
