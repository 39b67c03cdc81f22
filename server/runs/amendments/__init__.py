"""Amendments: changes of a live run's configuration, numbered, with old and new values."""
