"""Runs beside the user: the SDK for simulators, the collector, the HTTP client, the CLI. No torch, no server."""
