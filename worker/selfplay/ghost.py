"""Ghost: the self-play state of one behavior beside its learner (ML-Agents' `GhostTrainer`).

The counters are ML-Agents', and so are the comparisons with them (a strict `>`). Deviations: agent steps are compared
after a round was learned from, ghost steps then and when collectors report them; ML-Agents compares both whenever a
trajectory arrives. Each simulator, up to `MAX_DRAWS`, plays against draws of its own; with one simulator that is what
ML-Agents does. An opponent is exchanged when an episode of it begins, not in the middle.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import assert_never
from zlib import crc32

import numpy as np
import structlog
from numpy.typing import NDArray

from ludus.collector.commands import OpponentAssignment
from ludus.config.selfplay import OpponentSelection, SelfPlaySettings, followed_run
from server.ladders import elo
from worker.experience.state import State
from worker.learning.networks.actor import Actor
from worker.selfplay.external import ExternalOpponent, ExternalOpponents, Snapshot, SnapshotPool
from worker.trainer.initialization import Sources
from worker.trainer.recorder import Recorder

log = structlog.get_logger()


class Ratings:
    """Elo ratings of a behavior's policies: of the one that learns, and of its snapshots (`server.ladders.elo`).

    As in ML-Agents a snapshot begins with the rating that the policy has when it is taken. Matches conserve the sum:
    what the learning side gains, its opponents lose. Against several opponents each counts an equal part of a match;
    ML-Agents compares with the last team only and changes the ratings of all, so that there the sum drifts.
    """

    def __init__(self, initial: float) -> None:
        self.current = initial
        """Of the policy that learns."""
        self._snapshots: dict[int, float] = {}

    def enter(self, number: int, rating: float) -> None:
        """Begin the rating of an opponent with a given value."""
        self._snapshots[number] = rating

    def of(self, snapshot: int | None) -> float | None:
        """Return the rating of a snapshot, or (None) of the policy that learns; None if it is forgotten."""
        return self.current if snapshot is None else self._snapshots.get(snapshot)

    def add(self, snapshot: int | None, change: float) -> None:
        """Change the rating of a snapshot, or (None) of the policy that learns."""
        if snapshot is None:
            self.current += change
        else:
            self._snapshots[snapshot] += change

    def forget_before(self, number: int) -> None:
        """Forget older snapshots."""
        self._snapshots = {snapshot: rating for snapshot, rating in self._snapshots.items() if snapshot >= number}

    def state_dict(self) -> State:
        """Return everything that `load_state_dict` needs."""
        return {
            "current": self.current,
            "snapshots": {str(snapshot): rating for snapshot, rating in self._snapshots.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was taken."""
        self.current = state["current"]
        self._snapshots = {int(snapshot): rating for snapshot, rating in state["snapshots"].items()}


def rate(own: Ratings, opponents: Sequence[tuple[Ratings, int | None]], score: float) -> bool:
    """Rate a match of the policy that learns: `score` is 1, 1/2 or 0; an opponent is a snapshot, or a learning policy.

    Return whether it changed anything: it does not where a rating is forgotten, and where a policy plays itself.
    """
    ratings = [where.of(snapshot) for where, snapshot in opponents]
    differs = [where is not own or snapshot is not None for where, snapshot in opponents]
    present = [rating for rating in ratings if rating is not None]
    if len(present) < len(ratings) or not any(differs):
        return False
    changes = [elo.change(score, own.current, rating) / len(present) for rating in present]
    for (where, snapshot), change in zip(opponents, changes, strict=True):
        if where is not own or snapshot is not None:
            where.add(snapshot, -change)
            own.add(None, change)
    return True


MEMORY = 0.99
"""Factor of a game's weight for each later game against the same snapshot: the policy that learns changes."""


class Payoffs:
    """How the policy that learns fares against each snapshot."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}
        """Number of the snapshot -> games, points; both fade."""

    def played(self, number: int, score: float) -> None:
        """Record a game: 1 for a win of the policy that learns, 1/2 for a draw, 0 for a loss."""
        games, points = self._counts.get(number, (0.0, 0.0))
        self._counts[number] = (MEMORY * games + 1.0, MEMORY * points + score)

    def share(self, number: int) -> float | None:
        """Return the share of points, between 0 and 1; None before the first game."""
        games, points = self._counts.get(number, (0.0, 0.0))
        return points / games if games else None

    def forget_before(self, number: int) -> None:
        """Forget older snapshots."""
        self._counts = {snapshot: counts for snapshot, counts in self._counts.items() if snapshot >= number}

    def state_dict(self) -> State:
        """Return everything that `load_state_dict` needs."""
        return {str(number): list(counts) for number, counts in self._counts.items()}

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was taken."""
        self._counts = {int(number): (games, points) for number, (games, points) in state.items()}


def probabilities(selection: OpponentSelection, shares: list[float | None]) -> NDArray[np.float64]:
    """Return the probability of each snapshot, given the shares of points against them; None: not played yet.

    Uniform over the window is ML-Agents'. Prioritised fictitious self-play (Vinyals et al. 2019, AlphaStar, methods,
    "Prioritized fictitious self-play") prefers opponents by how the policy fared against them, with `p` its share of
    points (1 for a win, 1/2 for a draw): `(1 - p)^2` those it loses to, `p (1 - p)` its equals. Against whom it has not
    played yet, `p` is the value with the greatest probability, so that each opponent is tried.
    """
    match selection:
        case "uniform":
            weights = np.ones(len(shares))
        case "pfsp_hard":
            weights = (1.0 - np.array([0.0 if share is None else share for share in shares])) ** 2
        case "pfsp_variance":
            points = np.array([0.5 if share is None else share for share in shares])
            weights = points * (1.0 - points)
        case _:
            assert_never(selection)
    if not weights.any():  # it always wins, or (variance) always loses: all are equal
        weights = np.ones(len(shares))
    normalized: NDArray[np.float64] = weights / weights.sum()
    return normalized


def draw(
    settings: SelfPlaySettings, snapshots: tuple[Snapshot, ...], payoffs: Payoffs, rng: np.random.Generator
) -> Snapshot | None:
    """Draw an opponent: a snapshot, or None for the newest policy (`play_against_latest_model_ratio`).

    An exploiter never plays against itself.
    """
    if settings.exploiter is None and rng.random() >= 1.0 - settings.play_against_latest_model_ratio:
        return None
    shares = [payoffs.share(snapshot.number) for snapshot in snapshots]
    return snapshots[int(rng.choice(len(snapshots), p=probabilities(settings.opponent_selection, shares)))]


MAX_DRAWS = 8
REMEMBERED = 64
"""Snapshots outside the window whose ratings are kept, since matches against them may still be under way."""
Weights = NDArray[np.float32]


@dataclass
class Exploit:
    """How far an exploiter is since its newest reset."""

    resets: int = 0
    """In the whole run."""
    since: int = 0
    """Agent steps at the newest one."""
    games: float = 0.0
    points: float = 0.0
    """Of the games against its targets: 1 for a win, 1/2 for a draw; both fade (`MEMORY`)."""

    def played(self, score: float) -> None:
        """Record a game."""
        self.games, self.points = MEMORY * self.games + 1.0, MEMORY * self.points + score

    @property
    def share(self) -> float:
        """The share of points in the newest games, 0 to 1; 0 before the first one."""
        return self.points / self.games if self.games else 0.0


SETTLED_GAMES = 50.0
"""Weight of the newest games that a share of points must rest on before it resets an exploiter: 69 games have it."""


@dataclass
class Counters:
    """Counters of a behavior in self-play."""

    ghost_steps: int = 0
    """Decisions that were answered for teams that do not learn."""
    last_swap: int = 0
    """Ghost steps at the newest exchange of opponents."""
    last_save: int = 0
    """Agent steps at the newest snapshot."""
    last_team_change: int = 0
    """Agent steps when a turn of this behavior last ended."""
    matches: int = 0


class Ghost:
    """The snapshots, opponents, ratings and counters of one behavior."""

    def __init__(
        self,
        behavior: str,
        settings: SelfPlaySettings,
        seed: int,
        step: int,
        weights: Callable[[], Weights],
        recorder: Recorder,
    ) -> None:
        """`weights` returns those of the policy that learns; `step` is the number of steps that it has learned from."""
        self.behavior = behavior
        self.settings = settings
        self.step = step
        self.done = False
        """Whether the behavior has learned for all of its steps."""
        self.recorder = recorder
        self.counters = Counters(last_save=step, last_team_change=step)
        self.ratings = Ratings(settings.initial_elo)
        self.payoffs = Payoffs()
        self.pool = SnapshotPool(settings.window)
        self.external = ExternalOpponents()
        self.exploit = Exploit(since=step)
        self._weights = weights
        self._rng = np.random.default_rng([seed, crc32(behavior.encode())])
        self._steps: dict[int, int] = {}
        """Number of a snapshot -> the steps that it had learned for."""
        self.frozen: dict[int, Weights] = {}
        """Key -> weights, of all policies that are drawn."""
        self._teams: dict[int, list[int]] = {}
        self._others: list[int] = []

    def begin(self) -> None:
        """Save the policy as snapshot 0: the first opponent of all teams."""
        self.save()
        self._others = [0]
        self.frozen = {0: self.pool.snapshots[0].weights}

    def add_external(self, sources: Sources, actor: Actor, section: str) -> None:
        """Add the policies of other runs that the settings name. Raise `InitializationError`.

        Their ratings begin at `initial_elo`. `actor` is the behavior's network, `section` the path of its
        section in the configuration.
        """
        for opponent in self.external.add(self.settings.opponents, sources, self.behavior, actor, section):
            self.ratings.enter(opponent.number, self.settings.initial_elo)
        if self.settings.exploiter is not None and not self._teams:  # nor begins it against its own snapshot
            self.swap(set(), None, 1)

    def follow(self, run: str, checkpoint: str, folder: Path, actor: Actor) -> list[ExternalOpponent]:
        """Take the policies of a run's newer checkpoint as opponents, in place of the former ones; return new ones.

        `run` is its id or name, as the settings have it. Raise `InitializationError`.
        """
        added = [
            opponent
            for name in self.settings.opponents
            if followed_run(name) == run
            for opponent in self.external.follow(name, checkpoint, folder, self.behavior, actor)
        ]
        for opponent in added:
            self.ratings.enter(opponent.number, self.settings.initial_elo)
        return added

    @property
    def candidates(self) -> tuple[Snapshot, ...]:
        """The policies that can be drawn as opponents: the behavior's own snapshots, and policies of other runs.

        Those of an exploiter are policies of other runs alone; until the first one is here, its own snapshots.
        """
        external = tuple(self.external.opponents)
        return external if self.settings.exploiter is not None and external else (*self.pool.snapshots, *external)

    @property
    def reset_due(self) -> str | None:
        """Why an exploiter is to be reset, as the middle of a sentence; None if it is not."""
        rule, exploit = self.settings.exploiter, self.exploit
        if rule is None or self.done or self.step == exploit.since:
            return None
        if rule.reset_share is not None and exploit.games >= SETTLED_GAMES and exploit.share >= rule.reset_share:
            return f"its share of points is {exploit.share:.3f}, at least {rule.reset_share:g} (reset_share)"
        if rule.reset_steps is not None and self.step - exploit.since >= rule.reset_steps:
            return f"it has learned for {self.step - exploit.since:,} steps (reset_steps)"
        return None

    @property
    def save_due(self) -> bool:
        """Whether the policy has learned for more than `save_steps` since the newest snapshot; an exploiter is saved
        when it is reset."""
        return self.settings.exploiter is None and self.step - self.counters.last_save > self.settings.save_steps

    @property
    def swap_due(self) -> bool:
        """Whether the others have played for more than `swap_steps` since the newest exchange."""
        return self.counters.ghost_steps - self.counters.last_swap > self.settings.swap_steps

    @property
    def team_change_due(self) -> bool:
        """Whether the policy has learned for more than `team_change` since its newest turn began."""
        return self.step - self.counters.last_team_change > self.settings.team_change

    def save(self) -> None:
        """Save the present policy as a snapshot."""
        snapshot = self.pool.save(self.step, self._weights())
        log.debug("snapshot_saved", behavior=self.behavior, number=snapshot.number, step=self.step)
        self.ratings.enter(snapshot.number, self.ratings.current)
        self._steps[snapshot.number] = self.step
        self.counters.last_save = self.step
        oldest = self.pool.snapshots[0].number - REMEMBERED
        self.ratings.forget_before(oldest)
        self.payoffs.forget_before(oldest)
        self._steps = {number: step for number, step in self._steps.items() if number >= oldest}

    def swap(self, teams: set[int], learning: int | None, simulators: int) -> None:
        """Draw opponents for every team but the one that learns, and for those that may come: one per simulator."""
        count = min(max(simulators, 1), MAX_DRAWS)
        drawn: dict[int, Weights] = {}
        self._teams = {team: self._draw(count, drawn) for team in sorted(teams) if team != learning}
        self._others = self._draw(count, drawn)
        self.frozen = drawn
        log.debug("opponents_drawn", behavior=self.behavior, by_team=self._teams, for_others=self._others)
        self.counters.last_swap = self.counters.ghost_steps

    def _draw(self, count: int, drawn: dict[int, Weights]) -> list[int]:
        """Draw so many opponents; put their weights into `drawn`."""
        keys = []
        for _ in range(count):
            snapshot = draw(self.settings, self.candidates, self.payoffs, self._rng)
            key = -1 - self.step if snapshot is None else snapshot.number
            if key not in drawn:
                drawn[key] = self._weights() if snapshot is None else snapshot.weights
            keys.append(key)
        return keys

    def assignment(self, learning: int | None) -> OpponentAssignment:
        """Return the assignment of opponents, if this team learns."""
        return OpponentAssignment(learning, self._teams, self._others)

    def steps_of(self, key: int) -> int | None:
        """Return for how many steps a frozen policy of its own had learned; None if it is forgotten."""
        return -1 - key if key < 0 else self._steps.get(key)

    def state_dict(self) -> State:
        """Return the whole state of self-play of this behavior."""
        numbers = {snapshot.number for snapshot in self.candidates}
        return {
            "counters": asdict(self.counters),
            "pool": self.pool.state_dict(),
            "guests": self.external.state_dict(),
            "steps": {str(number): step for number, step in self._steps.items()},
            "ratings": self.ratings.state_dict(),
            "payoffs": self.payoffs.state_dict(),
            "teams": {str(team): keys for team, keys in self._teams.items()},
            "others": self._others,
            "copies": {str(key): weights for key, weights in self.frozen.items() if key not in numbers},
            "rng": self._rng.bit_generator.state,
            "exploit": asdict(self.exploit),
        }

    def load_state_dict(self, state: State) -> None:
        """Load the result of `state_dict`."""
        self.counters = Counters(**state["counters"])
        self.pool.load_state_dict(state["pool"])
        self.external.load_state_dict(state.get("guests", []))  # checkpoints of older releases have none
        self._steps = {int(number): step for number, step in state["steps"].items()}
        self.ratings.load_state_dict(state["ratings"])
        self.payoffs.load_state_dict(state["payoffs"])
        self._teams = {int(team): keys for team, keys in state["teams"].items()}
        self._others = state["others"]
        frozen = {snapshot.number: snapshot.weights for snapshot in self.candidates}
        policies = frozen | {int(key): weights for key, weights in state["copies"].items()}
        drawn = self.assignment(None).keys
        self.frozen = {key: policies[key] for key in sorted(drawn)}
        self._rng.bit_generator.state = state["rng"]
        self.exploit = Exploit(**state.get("exploit", {"since": self.step}))
