"""Algorithms: each file is one paper, from a rollout to better weights. No environment, no file, no process."""
