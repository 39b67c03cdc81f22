"""The collector process: serves simulators over gRPC, computes actions, cuts experience into segments."""
