"""What a training run is: its configuration as frozen models, without I/O. Start at `server.config.config`."""
