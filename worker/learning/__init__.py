"""Algorithms, networks, reward signals, and the functions that they share."""
