"""What routes share: fields, bodies, filters, pages, problems, idempotency."""
