"""The switch between autograd and derivatives by hand.

PPO's and SAC's are written by hand where all of their networks are MLPs over vectors. Every other gradient is
autograd's: pictures, entities, goals, memories, layer norms, POCA, imitation, reward signals, and activations that
`dense.ACTIVATION_GRADIENTS` does not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ludus.collector.layout import ActorLayout
from worker.learning.fast.dense import ACTIVATION_GRADIENTS

_USED = ContextVar("used", default=True)


def covers(layout: ActorLayout) -> bool:
    """Return whether an algorithm that is built now takes the gradient by hand."""
    return _USED.get() and layout.plain and layout.body.activation in ACTIVATION_GRADIENTS


@contextmanager
def autograd_only() -> Iterator[None]:
    """Build algorithms that differentiate by autograd within this context: for tests and measurements."""
    token = _USED.set(False)
    try:
        yield
    finally:
        _USED.reset(token)
