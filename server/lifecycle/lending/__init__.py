"""Slots of runs without games that are lent to runs whose games wait."""
