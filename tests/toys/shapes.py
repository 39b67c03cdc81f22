"""How often shapes are checked where the same update is repeated hundreds of times.

Tests of the worker check the shapes in signatures at every call (`tests/worker/conftest.py`). In a training that takes
about as long as the training itself, and finds what it finds in the first updates, or when the task changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config

from worker.learning.algorithms.algorithm import Algorithm

FIRST, EVERY = 3, 10


@contextmanager
def shapes_checked_now_and_then(algorithm: Algorithm) -> Iterator[None]:
    """Check shapes meanwhile, if they are checked at all, in the first updates of an algorithm and in every tenth."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", before or not (algorithm.version < FIRST or algorithm.version % EVERY == 0))
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
