"""The pages: static files, and how they are served. They ask the public API for everything (ADR 16)."""
