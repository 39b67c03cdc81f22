"""Reward signals: where rewards come from. Each file is one signal; `signals` makes them one axis."""
