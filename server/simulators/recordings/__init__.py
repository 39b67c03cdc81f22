"""Recordings of simulators' sessions: their rows, files and limits. `ludus.recordings` has the format."""
