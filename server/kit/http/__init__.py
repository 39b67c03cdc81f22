"""Shared by routes: fields, bodies, filters, pages, problems, idempotency."""
