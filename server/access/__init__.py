"""Tokens, projects and the audit log."""
