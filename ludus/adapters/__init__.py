"""Simulators made from environments of Gymnasium, games of PettingZoo, and Python games of one's own."""
