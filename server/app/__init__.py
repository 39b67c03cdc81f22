"""The HTTP API: application factory, problems, paging, idempotency, event streams. Features bring their own routes."""
