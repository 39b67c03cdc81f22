"""Discrete choices of DQN: the best one, and with probability `epsilon` one of the allowed choices at random.

The columns of the last layer are the values of the choices. Each branch explores by itself. Equally good choices are
equally likely.
"""

from typing import Any, ClassVar

from ludus.collector.heads.head import FORBIDDEN, A, Operations, Parameter

LEAST = 1e-30
"""Probabilities below this count as this."""


class EpsilonGreedy:
    """The columns are values; `epsilon` is a parameter that the learner sets and publishes with the weights."""

    explores: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("epsilon", 1, learned=False),)

    def logits(self, on: Operations[A], values: A, parameters: Any) -> A:
        """Return log-probabilities: `epsilon / allowed`, and `1 - epsilon` more for the best."""
        epsilon = parameters["epsilon"]
        allowed = on.at_least(values, FORBIDDEN / 2.0)
        best = on.at_least(values, on.largest(values))
        random = allowed / on.clip(on.total(allowed), 1.0, float("inf"))
        p = random * epsilon + best / on.total(best) * (1.0 - epsilon)
        logits: A = on.log(on.clip(p, LEAST, 1.0)) + (1.0 - allowed) * FORBIDDEN
        return logits
