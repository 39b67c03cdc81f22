"""The health of a behavior: findings that say why it does not learn, from what collectors and learner see anyway.

`monitor` keeps the list of one behavior, `reports` sends those of the run. docs/health.md has every code.
"""
