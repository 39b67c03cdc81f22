"""Ratings: computed from the ledger of matches, step by step or from the beginning."""
