"""Simulators, connected and past, and the desk at which they join."""
