"""Checks of a game by its steps: pure functions over columns, for `ludus doctor`, for games that play, and for runs.

`steps` has the columns, `observed`, `played` and `influence` measure them, `facts` says what was found, and `watch`
does all of it for a game that plays. docs/doctor.md and docs/health.md list what is found.
"""
