"""Matches: the ledger from which everything else about ladders is computed."""
