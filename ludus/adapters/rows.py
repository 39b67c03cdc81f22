"""Collects the agents of several games in one step, row by row, as columns of a batch."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.adapters.spaces import ObservationEncoder
from ludus.protocol.batches import Array, Bytes, DecisionBatch, Ints, Outcome, TerminalBatch


def flat_mask(mask: Any) -> Bytes:
    """Flatten an action mask (an array, or one array per branch) to (K,)."""
    parts = mask if isinstance(mask, tuple | list) else (mask,)
    return np.concatenate([np.asarray(part).reshape(-1) != 0 for part in parts]).astype(np.uint8)


class DecisionRows:
    """Agents of one behavior that wait for an action."""

    def __init__(self) -> None:
        self.agents: list[int] = []
        self._rewards: list[float] = []
        self._observations: list[Any] = []
        self._masks: list[Any] = []
        self._groups: list[int] = []

    def add(self, agent: int, reward: float, observation: Any, mask: Any = None, group: int = 0) -> None:
        """Append an agent. `mask` is as the game gives it; None where everything is allowed."""
        self.agents.append(agent)
        self._rewards.append(reward)
        self._observations.append(observation)
        self._masks.append(mask)
        self._groups.append(group)

    def batch(self, encoder: ObservationEncoder, mask_size: int) -> DecisionBatch:
        """Return the columns; there must be a row."""
        masks: Bytes | None = None
        if mask_size and any(mask is not None for mask in self._masks):
            everything = np.ones(mask_size, np.uint8)
            masks = np.stack([everything if mask is None else flat_mask(mask) for mask in self._masks])
        return DecisionBatch(
            np.array(self.agents, np.int32),
            np.array(self._rewards, np.float32),
            encoder.stack(self._observations),
            masks,
            _groups(self._groups),
        )


class TerminalRows:
    """Agents of one behavior whose episode ended."""

    def __init__(self) -> None:
        self.agents: list[int] = []
        self._rewards: list[float] = []
        self._observations: list[Any] = []
        self._truncated: list[bool] = []
        self._groups: list[int] = []
        self._outcomes: list[int] = []

    def add(
        self,
        agent: int,
        reward: float,
        observation: Any,
        *,
        truncated: bool,
        group: int = 0,
        outcome: Outcome = Outcome.UNSPECIFIED,
    ) -> None:
        """Append an agent, with its final observation."""
        self.agents.append(agent)
        self._rewards.append(reward)
        self._observations.append(observation)
        self._truncated.append(truncated)
        self._groups.append(group)
        self._outcomes.append(int(outcome))

    def batch(self, encoder: ObservationEncoder) -> TerminalBatch:
        """Return the columns; there must be a row."""
        outcomes: Array | None = np.array(self._outcomes, np.uint8) if any(self._outcomes) else None
        truncated: npt.NDArray[np.bool_] = np.array(self._truncated, np.bool_)
        return TerminalBatch(
            np.array(self.agents, np.int32),
            np.array(self._rewards, np.float32),
            encoder.stack(self._observations),
            truncated,
            group_ids=_groups(self._groups),
            outcomes=outcomes,
        )


def _groups(groups: list[int]) -> Ints | None:
    return np.array(groups, np.int32) if any(groups) else None
