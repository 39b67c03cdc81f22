"""The switch between autograd and derivatives by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

from ludus.collector.layout import ActorLayout
from worker.learning.fast.dense import ACTIVATION_GRADIENTS


class Case(Enum):
    """A gradient that is written by hand. Every other one is autograd's: pictures, entities, goals, memories, POCA,
    imitation, reward signals, and activations that `dense.ACTIVATION_GRADIENTS` does not have."""

    PPO = "PPO: actor and critic, separate or shared, are MLPs over vectors"
    SAC = "SAC: actor, critics and target are MLPs over vectors"


_USED = ContextVar("used", default=True)


def covers(case: Case, layout: ActorLayout) -> bool:
    """Return whether an algorithm that is built now takes the gradient by hand."""
    assert case in Case
    return _USED.get() and layout.plain and layout.body.activation in ACTIVATION_GRADIENTS


@contextmanager
def autograd_only() -> Iterator[None]:
    """Build algorithms that differentiate by autograd within this context: for tests and measurements."""
    token = _USED.set(False)
    try:
        yield
    finally:
        _USED.reset(token)
