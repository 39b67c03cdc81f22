"""Assessments: what `match` and `evaluate` runs are about, and what came of them."""
