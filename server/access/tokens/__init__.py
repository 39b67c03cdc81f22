"""Tokens: who may do what, in which project. Start at `server.access.tokens.principal`."""
