"""Plays episodes without a server: scripted players, exported models, results."""
