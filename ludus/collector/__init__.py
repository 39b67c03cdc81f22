"""Collectors: processes that serve simulators over gRPC, act for their agents and cut the experience into segments."""
