"""Recordings of simulators' sessions: their rows, files and limits. `ludus.play.recordings` has the format."""
