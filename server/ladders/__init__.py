"""Ladders: players, matches, and the ratings that are computed from them."""
