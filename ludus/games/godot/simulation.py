"""Games of Godot as simulators: each step of all agents of a game is one message of its plug-in, and one of the run.

The plug-in ends episodes by `done` alone, resets the game before it answers, and tells neither the last observation nor
whether a time limit cut the episode, unless its infos say so (`terminal_observation`, `TimeLimit.truncated`). Where
they don't, an episode ends with the last observation that its agent acted on, as terminated. That is exact for PPO,
which takes nothing from the last observation of a terminated episode.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ludus.games.godot.game import EDITOR, GodotGame, GodotSettings, find_build
from ludus.games.godot.spaces import GameInfo, Spaces, behavior_names, read_info
from ludus.games.godot.wire import entries
from ludus.protocol.batches import Array, DecisionBatch, Outcome, TerminalBatch
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import MAX_STATS, is_name
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.errors import GameLost, GameMistake
from ludus.sdk.simulation import ResetInfo, Simulation
from ludus.sdk.steps import Actions, StepBuilder
from ludus.sdk.values import described, flag, mask, number

TERMINAL: Final = "terminal_observation"
TRUNCATED: Final = "TimeLimit.truncated"
MASK: Final = "action_mask"
OUTCOME: Final = "outcome"
SUCCESS: Final = "is_success"
_TOLD: Final = frozenset({TERMINAL, TRUNCATED, MASK, OUTCOME})
"""Entries of an agent's info that are no metrics."""
OUTCOMES: Final = {"win": Outcome.WIN, "draw": Outcome.DRAW, "loss": Outcome.LOSS}
ENDLESS_DECISIONS: Final = 100_000
"""After so many decisions without the end of an episode the run is told."""

_NO_TERMINAL: Final = (
    "the game does not tell how its episodes end: the observation that comes with `done` is the first one of the next "
    "episode already, as with all released plug-ins. Each episode ends with the last observation that its agent acted "
    "on, and counts as terminated, also where a time limit cut it. To tell more, put `terminal_observation` and "
    "`TimeLimit.truncated` into get_info"
)
_ENDLESS: Final = (
    "no episode has ended in {decisions} decisions: the game resets its agents without telling. `reset_after` of the "
    "AIController sets needs_reset alone: set `done = true` there, too"
)
_UNUSED: Final = (
    "the run has the environment parameters {names}, and nothing of them reaches the game: --call NAME=METHOD calls "
    "METHOD_VALUE of each agent (difficulty 2: set_difficulty_2) whenever one changes"
)
_UNANSWERED: Final = (
    "no agent answered the call {method}: where its script has no function of this name, nothing was set. Let the "
    "function return true, and this warning stays away"
)


def make_simulation(
    name: str,
    count: int = 1,
    *,
    arguments: Mapping[str, object] | None = None,
    behavior: str | None = None,
    seed: int | None = None,
    seed_parameter: str | None = None,  # noqa: ARG001  games begin their episodes by themselves
    separate: bool = False,
    teams: Sequence[int] = (),
) -> "GodotSimulation":
    """Return the game of a build, or of the editor (`editor`). It starts when its behaviors are asked for.

    `arguments` are those of `GodotSettings`, and the game's own. `behavior` names the one behavior of all policies;
    `teams` are those of the agents in the game's order, or one for all. `seed` seeds the game when it starts; its
    episodes have no seeds. Raises GameNotMade.
    """
    if count > 1:
        raise GameNotMade("a process has one Godot game, with all its agents: leave out --envs (--count starts more)")
    if separate:
        raise GameNotMade("Godot's agents have the behaviors that their policy_name says: leave out --separate")
    build = None if name == EDITOR else find_build(name)
    return GodotSimulation(build, GodotSettings.of(arguments or {}), behavior=behavior, seed=seed, teams=teams)


class GodotSimulation(Simulation):
    """One game. All its agents move at the same time."""

    waits_for_all = True

    def __init__(
        self,
        build: Path | None,
        settings: GodotSettings,
        *,
        behavior: str | None = None,
        seed: int | None = None,
        teams: Sequence[int] = (),
    ) -> None:
        """`build` is the program to start; None: the editor."""
        self._build = build
        self._settings = settings
        self._behavior = behavior
        self._seed = seed
        self._teams = teams
        self._game: GodotGame | None = None
        self._views: dict[str, Spaces] = {}
        """By announced name."""
        self._agents: dict[str, list[int]] = {}
        """Likewise, in the game's order."""
        self._actions: list[Mapping[str, object]] = []
        self._seen: dict[str, tuple[Array, ...]] = {}
        """The observations that the agents of each behavior act on."""
        self._applied: dict[str, float] = {}
        self._warned: set[str] = set()
        self._decisions = 0
        """Since an episode has ended."""

    @property
    def behaviors(self) -> Sequence[BehaviorSpec]:  # type: ignore[override]  # the game knows them
        """The behaviors of the game, which starts now unless it plays. Raises GameLost, GameMistake, GameNotMade."""
        if self._game is None:
            self._game = GodotGame(self._build, self._settings, self._seed)
            self._meet(read_info(self._game.ask({"type": "env_info"})))
        return [view.behavior(name) for name, view in self._views.items()]

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin new episodes of all agents."""
        self._apply(builder, start.parameters)
        answer = self._ask({"type": "reset"})
        observations, infos = self._told(answer)
        for name, view in self._views.items():
            self._decide(
                builder,
                name,
                view.read([observations[agent] for agent in self._agents[name]], self._agents[name]),
                {},
                infos,
            )

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Send the actions of all agents to the game, and report its next step."""
        for batch in actions.batches:
            assert batch.agent_ids is not None
            view = self._views[batch.behavior]
            for row, agent in enumerate(batch.agent_ids.tolist()):
                self._actions[agent] = view.action(batch.continuous[row], batch.discrete[row])
        self._apply(builder, builder.parameters)
        answer = self._ask({"type": "action", "action": self._actions}, "step")
        observations, infos = self._told(answer)
        count = len(self._actions)
        rewards = {
            agent: _number(value, f"agent {agent}: its reward")
            for agent, value in enumerate(entries(answer, "reward", count))
        }
        ended = [
            agent for agent, value in enumerate(entries(answer, "done", count)) if flag(value, f"agent {agent}: done")
        ]
        self._decisions = 0 if ended else self._decisions + count
        if self._decisions >= ENDLESS_DECISIONS:
            self._warn(builder, "no_episode_ended", _ENDLESS.format(decisions=self._decisions))
        for agent in ended:
            self._report(builder, infos[agent])
        for name, view in self._views.items():
            agents = self._agents[name]
            columns = view.read([observations[agent] for agent in agents], agents)
            rows = [row for row, agent in enumerate(agents) if agent in set(ended)]
            if rows:
                self._end(builder, name, rows, rewards, infos)
            self._decide(
                builder, name, columns, {agent: 0.0 if agent in ended else rewards[agent] for agent in agents}, infos
            )

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()

    def _meet(self, info: GameInfo) -> None:
        """Group the agents by behavior. Raises GameMistake where agents of one behavior differ."""
        names = behavior_names(info.policies, self._behavior, self._teams)
        agents: defaultdict[str, list[int]] = defaultdict(list)
        for agent, (name, view) in enumerate(zip(names, info.spaces, strict=True)):
            agents[name].append(agent)
            first = self._views.setdefault(name, view)
            if view != first:
                raise GameMistake(
                    f"agents {agents[name][0]} and {agent} have one policy_name, {info.policies[agent]!r}, and differ "
                    "in what they see or do: give agents of another kind another policy_name"
                )
        self._agents = dict(agents)
        self._actions = [{} for _ in names]

    def _ask(self, message: Mapping[str, object], answer: str = "") -> dict[str, Any]:
        assert self._game is not None, "behaviors are read before the first reset"
        return self._game.ask(message, answer)

    def _told(self, answer: Mapping[str, Any]) -> tuple[Sequence[Any], Sequence[Mapping[str, Any]]]:
        """Return the observation and the info of each agent; plug-ins before October 2024 send no infos."""
        count = len(self._actions)
        infos = entries(answer, "info", count) if "info" in answer else [{}] * count
        return entries(answer, "obs", count), [info if isinstance(info, dict) else {} for info in infos]

    def _decide(
        self,
        builder: StepBuilder,
        name: str,
        columns: tuple[Array, ...],
        rewards: Mapping[int, float],
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """Ask for the actions of all agents of a behavior."""
        agents = self._agents[name]
        branches = [key.size for key in self._views[name].actions if key.is_discrete]
        masks = None
        if branches and any(MASK in infos[agent] for agent in agents):
            everything = np.ones(sum(branches), np.uint8)
            read = [_mask(infos[agent].get(MASK), branches, agent) for agent in agents]
            masks = np.stack([everything if row is None else row for row in read])
        earned = np.array([rewards.get(agent, 0.0) for agent in agents], np.float32)
        builder.request_decisions(DecisionBatch(np.array(agents, np.int32), earned, columns, masks), name)
        self._seen[name] = columns

    def _end(
        self,
        builder: StepBuilder,
        name: str,
        rows: Sequence[int],
        rewards: Mapping[int, float],
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """End the episodes of some agents of a behavior, by their rows in its columns."""
        agents = [self._agents[name][row] for row in rows]
        final = [column[list(rows)].copy() for column in self._seen[name]]
        for place, agent in enumerate(agents):
            told = infos[agent].get(TERMINAL)
            if told is None:
                self._warn(builder, "no_terminal_observation", _NO_TERMINAL)
                continue
            for column, value in zip(final, self._views[name].read([told], [agent]), strict=True):
                column[place] = value[0]
        truncated = [flag(infos[agent].get(TRUNCATED, False), f"agent {agent}: {TRUNCATED}") for agent in agents]
        outcomes = [OUTCOMES.get(str(infos[agent].get(OUTCOME, "")), Outcome.UNSPECIFIED) for agent in agents]
        batch = TerminalBatch(
            np.array(agents, np.int32),
            np.array([rewards[agent] for agent in agents], np.float32),
            tuple(final),
            np.array(truncated, np.bool_),
            outcomes=np.array(outcomes, np.uint8) if any(outcomes) else None,
        )
        builder.end_episodes(batch, name)

    def _report(self, builder: StepBuilder, info: Mapping[str, Any]) -> None:
        """Report the numbers of an agent's info at the end of its episode."""
        for key, value in info.items():
            if key in _TOLD or not isinstance(value, bool | int | float) or not math.isfinite(value):
                continue
            name = "Environment/Success" if key == SUCCESS else f"Environment/{key}"
            if is_name(name) and abs(value) < 1e30 and len(builder.stats) < MAX_STATS:
                builder.report(name, float(value))

    def _apply(self, builder: StepBuilder, parameters: Mapping[str, float]) -> None:
        """Call the agents' methods for the environment parameters that have changed."""
        if parameters and not self._settings.call:
            self._warn(builder, "parameters_unused", _UNUSED.format(names=", ".join(parameters)))
        for parameter, method in self._settings.call.items():
            value = parameters.get(parameter)
            if value is None or self._applied.get(parameter) == value:
                continue
            called = f"{method}_{spelled(value)}"
            returns = self._ask({"type": "call", "method": called}).get("returns")
            if not isinstance(returns, list) or all(answer is None for answer in returns):
                self._warn(builder, "call_unanswered", _UNANSWERED.format(method=called))
            self._applied[parameter] = value

    def _warn(self, builder: StepBuilder, code: str, sentence: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            builder.warn(code, sentence)


def spelled(value: float) -> str:
    """Return a number as the end of a method's name: 2 -> `2`, 0.5 -> `0_5`, -1 -> `minus_1`."""
    return f"{value:.6g}".replace(".", "_").replace("+", "").replace("-", "minus_", 1).replace("-", "minus_")


def _number(value: object, what: str) -> float:
    """Return a reward. One that is not finite may be right again after a new start."""
    if isinstance(value, str):
        raise GameMistake(f"{what} is {described(value)}; give one number, 0.0 where there is none")
    try:
        return number(float(value) if type(value) is int and abs(value) < 1 << 53 else value, what)
    except GameMistake as mistake:
        if isinstance(value, float):
            raise GameLost("not_finite", str(mistake)) from None
        raise


def _mask(value: object, branches: Sequence[int], agent: int) -> Array | None:
    try:
        return mask(value, branches)
    except GameMistake as mistake:
        raise mistake.of(f"agent {agent}") from None
