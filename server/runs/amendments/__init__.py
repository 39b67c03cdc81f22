"""Amendments: changes of a run's configuration while it goes on, numbered, with old and new values."""
