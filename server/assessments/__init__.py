"""Assessments: the policies that `match` and `evaluate` runs compare, and the verdicts."""
