"""The progress of runs: connected simulators, speed, estimated end."""
