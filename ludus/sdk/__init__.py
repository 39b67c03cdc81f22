"""Connects a game to a training run: the SDK for simulators."""
