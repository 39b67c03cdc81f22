"""Reads specs, observations and pictures from ML-Agents' messages; writes its results folder."""
