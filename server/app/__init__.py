"""The HTTP API: composes the routes of the features, with middleware, event streams and uploads."""
