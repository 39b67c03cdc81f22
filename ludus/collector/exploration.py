"""Noise that an agent explores with: which way it pulls is remembered from step to step.

White noise, which is new at every step, cancels itself out where actions push something heavy: a car that is pushed
left and right by turns stays where it is. Pink noise has the same power in every octave of time scales, so that some of
it always pushes long enough; as SAC's exploration it is the better choice on most tasks (Eberhard et al. 2023, "Pink
Noise Is All You Need", ICLR). Only what drives the samples changes: at every single step the noise is still standard
normal, so the distribution of an action given its observation, and its log-probability, are the policy's own.

Here pink noise is a sum of `OCTAVES` first-order autoregressive processes with doubling time scales (van der Ziel
1950), not a filtered block of Eberhard's kind: agents come and go at any step, and a sum has no block that would have
to end with their episode.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

OCTAVES = 10
"""Time scales of 1, 2, 4, ... 512 steps; slower than the last one the noise is white again."""


class PinkNoise:
    """The noise of all agents of a runner, each with a state of its own. Rows are slots (`ludus.collector.agents`)."""

    def __init__(self, columns: int) -> None:
        kept = 1.0 - 0.5 ** np.arange(OCTAVES)  # (OCTAVES,) of the state at each step: none, a half, three quarters ...
        self._kept = kept.astype(np.float32)[:, None]
        self._fresh = np.sqrt(1.0 - kept**2).astype(np.float32)[:, None]
        self.states = np.zeros((0, OCTAVES, columns), np.float32)
        """Everything that the next draws depend on beside the generator: (slots, octaves, columns)."""

    def draw(self, slots: npt.NDArray[np.intp], rng: np.random.Generator) -> Floats:
        """Move the noise of some agents by a step and return it, `(B, columns)`: each value standard normal.

        A slot keeps its noise when an episode ends and when another agent gets it: it is stationary from the first
        draw on, so there is nothing to begin again.
        """
        if len(slots) and (missing := int(slots.max()) + 1 - len(self.states)) > 0:
            begun = rng.standard_normal((missing, *self.states.shape[1:]), np.float32)
            self.states = np.concatenate([self.states, begun])
        states = self.states[slots] * self._kept
        states += rng.standard_normal(states.shape, np.float32) * self._fresh
        self.states[slots] = states
        noise: Floats = states.sum(1)
        noise *= np.float32(OCTAVES**-0.5)
        return noise
