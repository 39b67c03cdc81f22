"""Runs: tables, queries, events, and edits of their configuration. `server.lifecycle` has the commands on runs."""
