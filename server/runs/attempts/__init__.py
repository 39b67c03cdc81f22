"""Attempts of a run over HTTP, and their logs."""
