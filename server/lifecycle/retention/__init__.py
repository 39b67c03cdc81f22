"""Retention of rows: deletes old runs, events, simulators and matches."""
