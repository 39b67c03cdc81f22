"""The configuration of a run as frozen models, without I/O. Start at `server.config.config`."""
