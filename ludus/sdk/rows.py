"""The columns of a step in the making: agents of one behavior, row by row.

Legend: N rows, K choices of all branches together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ludus.protocol.batches import Array, Bytes, DecisionBatch, Floats, Ints, Outcome, TerminalBatch

Stack: TypeAlias = Callable[[Sequence[Any]], tuple[Array, ...]]
"""Turns the observations of N agents into columns, (N, *shape) each."""


def stack_parts(observations: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    """Stack observations that are given as one array per ObservationSpec."""
    return tuple(np.stack(column) for column in zip(*observations, strict=True))


@dataclass(slots=True)
class AgentRows:
    """Agents of one behavior: either all of them ask for an action, or the episodes of all of them end."""

    stack: Stack
    agents: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    observations: list[Any] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    group_rewards: list[float] = field(default_factory=list)
    masks: dict[int, Bytes] = field(default_factory=dict)
    """Row -> (K,). Rows that are not named are allowed everything."""
    truncated: list[bool] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)

    def ask(
        self,
        agent: int,
        reward: float,
        observation: Any,
        mask: Bytes | None = None,
        group: int = 0,
        group_reward: float = 0.0,
    ) -> None:
        """Append an agent that asks for an action. `mask` is (K,), 1 = allowed; None allows everything."""
        if mask is not None:
            self.masks[len(self.agents)] = mask
        self._add(agent, reward, observation, group, group_reward)

    def end(
        self,
        agent: int,
        reward: float,
        observation: Any,
        *,
        truncated: bool,
        outcome: Outcome = Outcome.UNSPECIFIED,
        group: int = 0,
        group_reward: float = 0.0,
    ) -> None:
        """Append an agent whose episode ended, with its final observation."""
        self._add(agent, reward, observation, group, group_reward)
        self.truncated.append(truncated)
        self.outcomes.append(int(outcome))

    def _add(self, agent: int, reward: float, observation: Any, group: int, group_reward: float) -> None:
        self.agents.append(agent)
        self.rewards.append(reward)
        self.observations.append(observation)
        self.groups.append(group)
        self.group_rewards.append(group_reward)

    def decisions(self, mask_size: int) -> DecisionBatch:
        """Return the columns of agents that ask; there must be a row."""
        masks = None
        if self.masks and mask_size:
            masks = np.ones((len(self.agents), mask_size), np.uint8)
            masks[list(self.masks)] = list(self.masks.values())
        return DecisionBatch(*self._common(), masks, *self._group_columns())

    def terminals(self) -> TerminalBatch:
        """Return the columns of agents whose episodes ended; there must be a row."""
        outcomes = np.array(self.outcomes, np.uint8) if any(self.outcomes) else None
        return TerminalBatch(*self._common(), np.array(self.truncated, np.bool_), *self._group_columns(), outcomes)

    def _common(self) -> tuple[Ints, Floats, tuple[Array, ...]]:
        return np.array(self.agents, np.int32), np.array(self.rewards, np.float32), self.stack(self.observations)

    def _group_columns(self) -> tuple[Ints | None, Floats | None]:
        if not any(self.groups):
            return None, None
        rewards = np.array(self.group_rewards, np.float32) if any(self.group_rewards) else None
        return np.array(self.groups, np.int32), rewards
