"""Runs that wait: the reason of each, and whether a person has to act."""
