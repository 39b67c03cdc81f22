"""GhostController: whose turn it is to learn, for all behaviors of a run that play against themselves.

A turn belongs to a team, as in ML-Agents: every behavior in self-play that has agents of this team learns in it, and
all other teams play frozen policies. Teams take turns in the order in which they came; those that come with the first
simulator, by their numbers. (ML-Agents goes through them in the order of a set of strings, which is another one in each
process.) A turn ends when a behavior that learns in it has learnt for more than its `team_change`, or for all of its
steps; teams whose behaviors are done get no more turns, and of those that no simulator plays any more the turn passes
on. With the change simulators begin anew.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any, Literal, Protocol

from ludus.collector.matches import EndedMatch
from ludus.protocol.batches import Outcome
from worker.collectors.notices import MatchesEnded
from worker.collectors.programs import Opposition
from worker.selfplay.ghost import Ghost, Weights
from worker.selfplay.ratings import rate
from worker.trainer.link import EventRecord, Match, Seat
from worker.trainer.recorder import Aggregation

ELO = "Self-play/ELO"
LEARNING_TEAM = "Self-play/Learning Team"
OPPONENT_ELO_MEAN = "Self-play/Opponent ELO Mean"
OPPONENT_ELO_STD = "Self-play/Opponent ELO Std"
SCORES = {Outcome.WIN: 1.0, Outcome.DRAW: 0.5, Outcome.LOSS: 0.0}
OUTCOMES: dict[Outcome, Literal["win", "draw", "loss"]] = {
    Outcome.WIN: "win",
    Outcome.DRAW: "draw",
    Outcome.LOSS: "loss",
}


class Field(Protocol):
    """What the controller asks of the collectors: `worker.collectors.pool.CollectorPool`."""

    def oppose(self, behavior: str, opposition: Opposition, weights: Mapping[int, Weights]) -> None:
        """Say which team learns, and what the others play."""


class GhostController:
    """Ghosts of all behaviors in self-play, and the teams' turns."""

    def __init__(
        self,
        field: Field,
        reset: Callable[[], None],
        simulators: Callable[[], int],
        tell: Callable[[EventRecord], None],
        patience: float = 60.0,
    ) -> None:
        """`reset` makes simulators begin anew, `simulators` counts those that are connected.

        A team that nobody plays is waited for for `patience` seconds.
        """
        self._field = field
        self._reset = reset
        self._simulators = simulators
        self._tell = tell
        self._patience = patience
        self._present: dict[str, set[int]] = {}
        """Incarnation of a simulator -> the teams of behaviors in self-play that it plays."""
        self._missed_since: float | None = None
        """When the team that learns was first found to be played by nobody."""
        self._passed_over: set[int] = set()
        """Teams whose turn has passed on, since nobody played them."""
        self._ghosts: dict[str, Ghost] = {}
        self._teams: dict[int, set[str]] = {}
        """Team -> its behaviors, as simulators brought them."""
        self._queue: deque[int] = deque()
        """Teams whose turn comes, the next one first."""
        self._learning: int | None = None
        self._begun = False
        self._told: dict[str, int | None] = {}
        """Behavior -> the team of it that learns, as the collectors know it."""
        self._warned: set[str] = set()

    @property
    def learning(self) -> int | None:
        """The team whose turn it is; None before the first simulator has begun to play."""
        return self._learning

    def ghost(self, behavior: str) -> Ghost | None:
        """Return what self-play keeps of a behavior; None if it is not in self-play."""
        return self._ghosts.get(behavior)

    def rating(self, behavior: str) -> float | None:
        """Return the Elo rating of the policy of a behavior that learns; None if it is not in self-play."""
        ghost = self._ghosts.get(behavior)
        return None if ghost is None else ghost.ratings.current

    @property
    def ratings(self) -> dict[str, float]:
        """The Elo rating of the policy that learns, of each behavior in self-play."""
        return {behavior: ghost.ratings.current for behavior, ghost in self._ghosts.items()}

    def metrics(self, behavior: str) -> dict[str, float]:
        """Return what every summary of a behavior has: whose turn it is, if the behavior is in self-play."""
        return {} if self._learning is None or behavior not in self._ghosts else {LEARNING_TEAM: self._learning}

    # Who is there -----------------------------------------------------------------------------------------------

    def join(self, ghost: Ghost, saved: dict[str, Any] | None, invite: Callable[[], None] = lambda: None) -> None:
        """Take a behavior in, new or as `state` saved it; then `invite` its guests. If that raises, it stays out."""
        if saved is None:
            ghost.begin()
        else:
            ghost.load_state_dict(saved["ghost"])
            self._learning = saved["learning"]
            self._queue = deque(saved["queue"])
        invite()
        self._ghosts[ghost.behavior] = ghost

    def team_announced(self, behavior: str, team: int) -> None:
        """Take note of a team that no simulator had brought before."""
        if behavior not in self._ghosts:
            return
        self._teams.setdefault(team, set()).add(behavior)
        if self._begun:
            self._enqueue(team)
            if self._oppose(self._ghosts[behavior]):
                self._reset()

    def begin(self) -> None:
        """Begin the first turn, when a simulator plays: all of its teams are known by then. Later calls do nothing."""
        if self._begun or not self._teams:
            return
        self._begun = True
        for team in sorted(self._teams):
            self._enqueue(team)
        for ghost in self._ghosts.values():
            self._oppose(ghost)
        assert self._learning is not None, "there is a team"
        self._tell_of_turn(f"Team {self._learning} learns, all others play frozen policies")

    def plays(self, incarnation: str, sides: Iterable[tuple[str, int]]) -> None:
        """Take note of the behaviors and teams that a simulator plays; again when it brings more of them."""
        self._present[incarnation] = {team for behavior, team in sides if behavior in self._ghosts}
        self._passed_over -= self._present[incarnation]

    def left(self, incarnation: str) -> None:
        """Take note that a simulator is gone."""
        self._present.pop(incarnation, None)

    def _is_played(self, team: int) -> bool:
        """Whether a simulator plays a team, as far as is known: of nobody who plays nothing is known."""
        return not any(self._present.values()) or any(team in teams for teams in self._present.values())

    def _enqueue(self, team: int) -> None:
        if self._learning is None:
            self._learning = team
        elif team != self._learning and team not in self._queue:
            self._queue.append(team)

    # Turns ------------------------------------------------------------------------------------------------------

    def has_turn(self, behavior: str) -> bool:
        """Whether a team of the behavior learns now."""
        return self._begun and self._learning is not None and behavior in self._teams.get(self._learning, ())

    def played(self, behavior: str, steps: int) -> None:
        """Take note of what teams played that do not learn; exchange their policies where it is due."""
        ghost = self._ghosts[behavior]
        ghost.counters.ghost_steps += steps
        self._swap_if_due(ghost)

    def learned(self, behavior: str, step: int, *, done: bool) -> None:
        """Take note that the policy has learnt from a round: turns, snapshots and opponents follow."""
        ghost = self._ghosts[behavior]
        ghost.step, ghost.done = step, done
        self._warn_of_one_team(behavior)
        change = False
        if ghost.team_change_due or self._is_learnt(self._learning):
            ghost.counters.last_team_change = step
            change = self._rotate()
        if ghost.save_due:
            ghost.save()
        if change:
            self._begin_turn(step)
        else:
            self._swap_if_due(ghost)

    def watch(self, now: float) -> None:
        """Pass the turn on when nobody has played the team that learns for a while. To be called now and then.

        `now` is in seconds, of any clock. Where nobody plays any other team either, the turn stays where it is.
        """
        learning = self._learning
        over = learning in self._teams and self._is_learnt(learning)
        if not self._begun or learning is None or over or self._is_played(learning):
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
            message = (
                f"Team {learning} is to learn, and no simulator plays it: learning waits. Start a simulator that "
                f"brings it; after {self._patience:g} s the turn passes on to a team that is played"
            )
            self._event("self_play_team_missing", message, team=learning)
        elif now - self._missed_since >= self._patience:
            ghosts = [self._ghosts[behavior] for behavior in self._teams.get(learning, ())]
            for ghost in ghosts:
                ghost.counters.last_team_change = ghost.step
            if self._rotate():
                self._missed_since = None
                self._begin_turn(max((ghost.step for ghost in ghosts), default=0))

    def _rotate(self) -> bool:
        """Let the next team learn that has something to learn and is played. Return whether it is another one."""
        assert self._learning is not None
        if not self._is_played(self._learning):
            self._tell_of_passing(self._learning)
        for place, team in enumerate(self._queue):
            if self._is_learnt(team):
                continue
            if not self._is_played(team):
                self._tell_of_passing(team)
                continue
            self._queue.append(self._learning)
            self._queue.rotate(-place)
            self._learning = self._queue.popleft()
            return True
        return False

    def _begin_turn(self, step: int) -> None:
        """Draw opponents for everybody, and let simulators begin anew; the turn before ended at `step`."""
        for ghost in self._ghosts.values():
            self._swap(ghost)
        self._reset()
        # ML-Agents logs this line, at the level debug.
        line = f"Learning team {self._learning} swapped on step {step}"
        self._tell_of_turn(f"Team {self._learning} learns from step {step} on", step=step, log_line=line)

    def _tell_of_turn(self, message: str, **data: object) -> None:
        """Tell whose turn begins, as an event and in the metrics."""
        learning = self._learning
        assert learning is not None, "a turn has begun"
        behaviors = sorted(self._teams.get(learning, ()))
        self._tell(
            EventRecord(
                name="self_play_turn_began",
                message=f"{message} ({', '.join(behaviors)})" if behaviors else message,
                data={"team": learning, "behaviors": behaviors, **data},
            )
        )
        for ghost in self._ghosts.values():
            ghost.recorder.note(ghost.step, {LEARNING_TEAM: learning})

    def _tell_of_passing(self, team: int) -> None:
        """Tell once, until it is played again, that a team's turn passes on."""
        if team not in self._passed_over:
            self._passed_over.add(team)
            message = f"Team {team} gets no turn to learn, since no simulator plays it; it is in the queue again"
            self._event("self_play_turn_passed", message, team=team)

    def _is_learnt(self, team: int | None) -> bool:
        """Return whether all behaviors that learn in a team's turn are done."""
        return team is not None and all(self._ghosts[behavior].done for behavior in self._teams.get(team, ()))

    def _swap_if_due(self, ghost: Ghost) -> None:
        if ghost.swap_due:
            self._swap(ghost)

    def _swap(self, ghost: Ghost) -> None:
        teams = {team for team, behaviors in self._teams.items() if ghost.behavior in behaviors}
        ghost.swap(teams, self._learning, self._simulators())
        self._oppose(ghost)

    def _oppose(self, ghost: Ghost) -> bool:
        """Tell the collectors who of a behavior learns, and what its others play. Return whether the former changed."""
        learning = self._learning if self.has_turn(ghost.behavior) else None
        changed = self._told.setdefault(ghost.behavior, learning) != learning
        self._told[ghost.behavior] = learning
        self._field.oppose(ghost.behavior, ghost.opposition(learning), ghost.frozen)
        return changed

    def _warn_of_one_team(self, behavior: str) -> None:
        if len(self._teams) > 1 or behavior in self._warned:
            return
        self._warned.add(behavior)
        message = (
            f"{behavior} has self_play, but simulators have brought team {self._learning} only: it learns without "
            "opponents. Let the other side announce a team of its own (`NAME?team=1`; Unity: Team Id in Behavior "
            "Parameters), or remove self_play"
        )
        self._event("self_play_without_opponents", message, behavior=behavior, team=self._learning)

    def _event(self, name: str, message: str, **data: object) -> None:
        self._tell(EventRecord(name=name, level="warning", message=message, data=data))

    # Matches ----------------------------------------------------------------------------------------------------

    def ended(self, notice: MatchesEnded, step: int, at: float) -> list[Match]:
        """Rate matches and return them for the ledger; `step` is how far the behavior is, `at` the time (UTC)."""
        ghost = self._ghosts[notice.behavior]
        played = [self._rated(ghost, match, step, at) for match in notice.matches if match.opponents]
        if any(match.rated for match in played):
            sides = {behavior for match in notice.matches for behavior, _, _ in match.opponents}
            self._measure_opponents(ghost, sides)
        return played

    def _measure_opponents(self, ghost: Ghost, behaviors: set[str]) -> None:
        """Record how strong the snapshots are that may be drawn as opponents."""
        ratings = [
            rating
            for behavior in sorted(behaviors)
            for snapshot in self._ghosts[behavior].candidates
            if (rating := self._ghosts[behavior].ratings.of(snapshot.number)) is not None
        ]
        ghost.recorder.measure(OPPONENT_ELO_MEAN, fmean(ratings), Aggregation.LAST)
        ghost.recorder.measure(OPPONENT_ELO_STD, pstdev(ratings), Aggregation.LAST)

    def _rated(self, ghost: Ghost, match: EndedMatch, step: int, at: float) -> Match:
        outcome = Outcome(match.outcome)
        counts = match.settled
        if match.truncated:
            if ghost.settings.interrupted_games == "draw":
                outcome = Outcome.DRAW
            else:
                counts = False
        seats, opponents = [Seat(behavior=ghost.behavior, team=match.team, snapshot=None, step=ghost.step)], []
        for behavior, team, key in match.opponents:
            other = self._ghosts[behavior]
            snapshot = None if key < 0 else key
            seats.append(_frozen_seat(other, team, key))
            opponents.append((other.ratings, snapshot))
            if counts and snapshot is not None:
                other.payoffs.played(snapshot, SCORES[outcome])
        rated = counts and rate(ghost.ratings, opponents, SCORES[outcome])
        if counts:
            ghost.recorder.measure(ELO, ghost.ratings.current)
        ghost.counters.matches += 1
        return Match(
            number=ghost.counters.matches,
            behavior=ghost.behavior,
            simulator=match.simulator,
            at=at,
            step=step,
            seats=seats,
            outcome=OUTCOMES[outcome],
            truncated=match.truncated,
            rated=rated,
            elo=ghost.ratings.current,
        )

    # Checkpoints ------------------------------------------------------------------------------------------------

    def state(self, behavior: str) -> dict[str, Any]:
        """Return what a checkpoint holds of a behavior, and of whose turn it is: `join` goes on from it."""
        return {
            "learning": self._learning,
            "queue": list(self._queue),
            "ghost": self._ghosts[behavior].state_dict(),
        }


def _frozen_seat(ghost: Ghost, team: int, key: int) -> Seat:
    """Return who sat where a frozen policy played."""
    guest = ghost.guests.find(key)
    if guest is not None:
        return Seat(
            behavior=guest.behavior,
            team=team,
            snapshot=guest.snapshot,
            step=guest.step,
            checkpoint=guest.checkpoint,
            scripted=guest.name if guest.checkpoint is None else None,
        )
    step = ghost.steps_of(key)
    return Seat(
        behavior=ghost.behavior, team=team, snapshot=None if key < 0 else key, step=-1 if step is None else step
    )
