"""Ratings: computed from the ledger of matches, step by step or anew."""
