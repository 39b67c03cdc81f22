"""Runs: their life, their place in the database, and what users do with them."""
