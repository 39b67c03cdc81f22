"""Exploration by random choices, as of DQN."""

from collections.abc import Mapping
from typing import ClassVar, Final

from ludus.collector.heads import FORBIDDEN, A, Head, Operations, Parameter

LEAST = 1e-30
"""Probabilities below this count as this."""


class EpsilonGreedy:
    """Discrete choices: the best one, and with probability `epsilon` one of the allowed choices at random.

    The columns are the values of the choices; `epsilon` is a parameter that the learner sets and publishes with the
    weights. Each branch explores by itself. Equally good choices are equally likely.
    """

    explores: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("epsilon", 1, learned=False),)

    def logits(self, on: Operations[A], values: A, parameters: Mapping[str, A]) -> A:
        """Return log-probabilities: `epsilon / allowed`, and `1 - epsilon` more for the best."""
        epsilon = parameters["epsilon"]
        allowed = on.at_least(values, FORBIDDEN / 2.0)
        best = on.at_least(values, on.largest(values))
        random = allowed / on.clip(on.total(allowed), 1.0, float("inf"))
        p = random * epsilon + best / on.total(best) * (1.0 - epsilon)
        logits: A = on.log(on.clip(p, LEAST, 1.0)) + (1.0 - allowed) * FORBIDDEN
        return logits


EPSILON_GREEDY: Final = Head(continuous=None, discrete=EpsilonGreedy())
