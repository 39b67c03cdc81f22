"""Stored configurations: named, in immutable versions."""
