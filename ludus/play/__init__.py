"""Plays without a server: episodes by scripted players and exported models, checks of games, recorded sessions."""
