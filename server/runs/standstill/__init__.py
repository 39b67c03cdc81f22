"""Runs that do not go on: what each waits for, and whether a person has to do something."""
