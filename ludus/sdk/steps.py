"""One step of a game: `StepBuilder` collects the events, `Actions` holds the server's answers.

A game reports agents one by one (`request_decision`, `end_episode`, `for action in actions`), or whole columns if it
keeps its agents in arrays (`request_decisions`, `end_episodes`, `actions.batches`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ludus.protocol.batches import (
    ActionBatch,
    Aggregation,
    Array,
    BehaviorBatch,
    Bytes,
    DecisionBatch,
    Floats,
    Ints,
    Outcome,
    StatValue,
    TerminalBatch,
)
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import UINT8, BehaviorLayout, ObservationLayout
from ludus.sdk.environment_parameters import EnvironmentParameters
from ludus.sdk.errors import Failure, GameMistake
from ludus.sdk.values import array, described, flag, float32_of, number, uint8_of, whole
from ludus.sdk.values import mask as action_mask

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
    observations: list[object] = field(default_factory=list)
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
        observation: object,
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
        observation: object,
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

    def _add(self, agent: int, reward: float, observation: object, group: int, group_reward: float) -> None:
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


Observation: TypeAlias = npt.ArrayLike | Sequence[npt.ArrayLike]
"""One agent's observation: an array; a sequence of arrays where the spec has several observations.

Of an observation of variable length (its first dimension is `VARIABLE_SIZE`) only the entities that there are need be
given, one row each; rows of zeros fill it up."""

Waiting: TypeAlias = Mapping[str, Mapping[int, int]]
"""Behavior -> agent -> the step whose answer the agent waits for."""


_Batch = TypeVar("_Batch", DecisionBatch, TerminalBatch)


class Action(NamedTuple):
    """The action of one agent."""

    behavior: str
    agent: int
    continuous: Floats
    """(C,) in [-1, 1]."""
    discrete: Ints
    """(D,): the choice in each branch."""


class Actions:
    """Answers for one or more agents, of one or more behaviors."""

    def __init__(self, batches: Sequence[ActionBatch] = ()) -> None:
        self.batches = tuple(batches)
        """As columns, one entry per behavior; `agent_ids` is always given."""

    def __iter__(self) -> Iterator[Action]:
        for batch in self.batches:
            assert batch.agent_ids is not None
            for row, agent in enumerate(batch.agent_ids.tolist()):
                yield Action(batch.behavior, agent, batch.continuous[row], batch.discrete[row])

    def __len__(self) -> int:
        return sum(len(batch.continuous) for batch in self.batches)


class StepBuilder:
    """Collects the events of the game until some agents need an action.

    Ends take effect before decisions: an agent may end an episode and begin the next one in the same step.
    """

    def __init__(
        self, layouts: Mapping[str, BehaviorLayout], waiting: Waiting, parameters: EnvironmentParameters | None = None
    ) -> None:
        self.parameters = EnvironmentParameters() if parameters is None else parameters
        """The run's environment parameters as they are now, for the episodes that begin in this step."""
        self._layouts = dict(layouts)
        self._waiting = waiting
        self._decisions: dict[str, AgentRows | DecisionBatch] = {}
        self._terminals: dict[str, AgentRows | TerminalBatch] = {}
        self._stats: list[StatValue] = []
        self._announced: list[BehaviorSpec] = []
        self.warnings: list[Failure] = []
        """Those of `warn` in this step."""

    def warn(self, code: str, sentence: str) -> None:
        """Tell the people of the run something about this game: it becomes an event of the run, with this code.

        Games say such a thing once; the run takes a few of them in a minute.
        """
        self.warnings.append(Failure(code, sentence, permanent=False))

    def request_decision(
        self,
        agent: int,
        observation: Observation,
        reward: float = 0.0,
        *,
        behavior: str | None = None,
        mask: npt.ArrayLike | None = None,
        group: int = 0,
        group_reward: float = 0.0,
    ) -> None:
        """Ask for an agent's next action. An agent that has no running episode begins one.

        `reward` is the agent's reward since its previous decision. `mask` says for each choice of all branches, one
        branch after the other, whether it is allowed. `group` (1 or more) names the agent's team mates, who share
        `group_reward`. `behavior` can be left out where there is only one.
        """
        layout = self._layout(behavior)
        try:
            _check_ids(agent, group)
            allowed = action_mask(mask, layout.spec.actions.discrete_branches)
            earned, shared = number(reward, "the reward"), number(group_reward, "the group's reward")
            self._rows(self._decisions, layout).ask(agent, earned, _arrays(layout, observation), allowed, group, shared)
        except GameMistake as mistake:
            raise mistake.of(f"agent {agent} of {layout.spec.name!r}") from None

    def end_episode(
        self,
        agent: int,
        observation: Observation,
        reward: float = 0.0,
        *,
        truncated: bool = False,
        behavior: str | None = None,
        outcome: Outcome = Outcome.UNSPECIFIED,
        group: int = 0,
        group_reward: float = 0.0,
    ) -> None:
        """End an agent's episode with its final observation.

        `truncated` is True where a limit cut the episode short (its future still had value), False where the task
        itself ended. `outcome` is the result for the agent, in games that have winners.
        """
        layout = self._layout(behavior)
        try:
            _check_ids(agent, group)
            earned, shared = number(reward, "the reward"), number(group_reward, "the group's reward")
            arrays, cut = _arrays(layout, observation), flag(truncated, "truncated")
            rows = self._rows(self._terminals, layout)
            rows.end(agent, earned, arrays, truncated=cut, outcome=outcome, group=group, group_reward=shared)
        except GameMistake as mistake:
            raise mistake.of(f"agent {agent} of {layout.spec.name!r}") from None

    def request_decisions(self, batch: DecisionBatch, behavior: str | None = None) -> None:
        """Ask for the actions of many agents of one behavior at once. The arrays may be reused after the step."""
        self._set(self._decisions, batch, self._layout(behavior))

    def end_episodes(self, batch: TerminalBatch, behavior: str | None = None) -> None:
        """End the episodes of many agents of one behavior at once. The arrays may be reused after the step."""
        self._set(self._terminals, batch, self._layout(behavior))

    def report(self, key: str, value: float, aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        """Report a number of your own; it appears among the run's metrics, aggregated over each summary period."""
        self._stats.append(StatValue(key, number(value, f"the stat {key!r}"), aggregation))

    def announce(self, spec: BehaviorSpec) -> None:
        """Introduce a behavior that `Simulation.behaviors` did not name. Harmless if it is known already."""
        if spec.name not in self._layouts:
            self._layouts[spec.name] = BehaviorLayout(spec)
            self._announced.append(spec)

    @property
    def stats(self) -> Sequence[StatValue]:
        """The stats that were reported in this step."""
        return self._stats

    @property
    def announced(self) -> Sequence[BehaviorSpec]:
        """Behaviors that this step introduces."""
        return self._announced

    def batches(self) -> list[BehaviorBatch]:
        """Return everything as columns. Raises GameMistake where an agent asks twice, or waits for an answer."""
        return [self._batch(name) for name in {**self._terminals, **self._decisions}]

    def _batch(self, name: str) -> BehaviorBatch:
        decisions, terminals = self._decisions.get(name), self._terminals.get(name)
        if isinstance(decisions, AgentRows):
            decisions = decisions.decisions(self._layouts[name].spec.actions.mask_size)
        if isinstance(terminals, AgentRows):
            terminals = terminals.terminals()
        ended = set() if terminals is None else _unique(terminals.agent_ids, name, "ended")
        if decisions is not None:
            asking = _unique(decisions.agent_ids, name, "asked for an action")
            waiting = self._waiting.get(name)
            if waiting and (twice := (asking & waiting.keys()) - ended):
                raise GameMistake(
                    f"agent {min(twice)} of {name!r} still waits for the answer to an earlier decision: ask for agents "
                    "that were answered only, or, if all move at once, set `waits_for_all = True` in the Simulation"
                )
        return BehaviorBatch(name, decisions, terminals)

    def _layout(self, behavior: str | None) -> BehaviorLayout:
        if behavior is None:
            if len(self._layouts) == 1:
                return next(iter(self._layouts.values()))
            raise GameMistake(f"say which behavior is meant: {', '.join(self._layouts)}")
        if behavior not in self._layouts:
            raise GameMistake(f"behavior {behavior!r} was not announced, only {', '.join(self._layouts) or 'none'}")
        return self._layouts[behavior]

    def _rows(self, part: dict[str, AgentRows | _Batch], layout: BehaviorLayout) -> AgentRows:
        rows = part.setdefault(layout.spec.name, AgentRows(stack_parts))
        if not isinstance(rows, AgentRows):
            raise GameMistake(f"{layout.spec.name!r} was given as a batch in this step; put all its agents there")
        return rows

    def _set(self, part: dict[str, AgentRows | _Batch], batch: _Batch, layout: BehaviorLayout) -> None:
        if layout.spec.name in part:
            raise GameMistake(f"{layout.spec.name!r} was given already in this step; put all its agents into one batch")
        part[layout.spec.name] = batch


def _check_ids(agent: int, group: int) -> None:
    whole(agent, "its number")
    whole(group, "the group", low=0)


def _arrays(layout: BehaviorLayout, observation: Observation) -> list[Array]:
    """Return copies of an agent's observations: games like to reuse one array. Raises GameMistake."""
    layouts = layout.observations
    parts: Sequence[npt.ArrayLike] = observation if len(layouts) > 1 else (observation,)  # type: ignore[assignment]
    if isinstance(parts, dict) or not hasattr(parts, "__len__"):
        raise GameMistake(f"its observation is {described(parts)}; give a list of {len(layouts)} arrays")
    if len(parts) != len(layouts):
        raise GameMistake(f"it has {len(parts)} observations, not {len(layouts)}; give a list of as many arrays")
    return [_array(part, expected) for part, expected in zip(parts, layouts, strict=True)]


def _array(part: npt.ArrayLike, expected: ObservationLayout) -> Array:
    """Return a copy of an observation; of one of variable length the entities that there are, and zeros behind them."""
    says = shape = tuple(expected.shape)
    if expected.variable:
        if not np.size(part):  # no entity: a list without elements has no width
            part = np.zeros((0, *shape[1:]))
        shape = (min(len(part) if isinstance(part, Sized) else 1, shape[0]), *shape[1:])
    read = array(part, shape, expected.name, says=says)[None]
    is_image = expected.dtype == UINT8
    column: Array = (uint8_of if is_image else float32_of)(read, expected.name)[0]
    if not expected.variable:
        return column.copy() if is_image else column
    filled = np.zeros(expected.shape, expected.dtype)
    filled[: len(column)] = column
    return filled


def _unique(ids: Ints, behavior: str, what: str) -> set[int]:
    unique = set(ids.tolist())
    if len(unique) < len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise GameMistake(f"agent {values[counts > 1][0]} of {behavior!r} {what} twice in one step")
    return unique
