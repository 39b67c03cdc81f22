"""The health of runs: the findings of their trainers."""
