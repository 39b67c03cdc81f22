"""What runs beside the user: the simulator SDK, the command line, the typed HTTP client. Light: no torch, no server."""
