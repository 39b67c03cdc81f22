"""A simulated fleet: slots, simulators and listeners on the real control plane. Start it with `-m benchmarks.fleet`."""
