"""How many examples Hypothesis tries: all in `make test-all` and wherever nothing is said, some in `make test`."""

import os

SHARE = float(os.environ.get("LUDUS_TEST_EXAMPLES", "1"))
"""The share of a test's examples, from 0 to 1."""


def examples(number: int) -> int:
    """Return how many of `number` examples a test tries, at least one."""
    return max(1, round(number * SHARE))
