"""Tokens: scopes and projects. Start at `server.kit.principal`."""
