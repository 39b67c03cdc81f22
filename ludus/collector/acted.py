"""The result of a policy for a batch of agents: their actions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray


@dataclass(frozen=True, slots=True)
class Acted:
    """Actions for `B` agents. Dimensions: `C` continuous columns, `D` branches."""

    continuous_sample: FloatArray
    """`(B, C)`: the value of the samples that the learner gets (`ContinuousHead.recorded`)."""
    continuous_env: FloatArray
    """`(B, C)`: the value that the environment gets, within [-1, 1] (`ContinuousHead.action`)."""
    discrete: NDArray[np.int32]
    """`(B, D)`: the chosen index of each branch."""
    log_probs: FloatArray
    """`(B, C + D)`: log-probability of each column and each branch, of the values that the learner gets."""
    memory: FloatArray | None = None
    """`(B, memory_size)`: the memory after the step; None without one."""
