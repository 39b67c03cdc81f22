"""The gRPC front door: authenticates simulators, assigns them to collectors, relays on request."""
