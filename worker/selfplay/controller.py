"""GhostController: the order in which teams learn, for all behaviors of a run with self-play.

A turn belongs to a team, as in ML-Agents: every behavior in self-play that has agents of this team learns in it, and
all other teams play frozen policies. Teams take turns in the order in which they came; those that come with the first
simulator, by their numbers. (ML-Agents goes through them in the order of a set of strings, which is another one in each
process.) A turn ends when a behavior that learns in it has learned for more than its `team_change`, or for all of its
steps; teams whose behaviors are done get no more turns, and of those that no simulator plays any more the turn passes
on. With the change simulators are reset.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sized
from statistics import fmean, pstdev

from ludus.collector.messages import EndedMatch, MatchesEnded
from ludus.protocol.batches import Outcome
from server.ladders.refs import Outcome as Result
from server.ladders.refs import PlayedMatch, PlayedParticipant
from worker.collectors.pool import CollectorPool
from worker.experience.state import State
from worker.selfplay.ghost import Exploit, Ghost, rate
from worker.trainer.messages import EventRecord
from worker.trainer.recorder import Aggregation

ELO = "Self-play/ELO"
LEARNING_TEAM = "Self-play/Learning Team"
OPPONENT_ELO_MEAN = "Self-play/Opponent ELO Mean"
OPPONENT_ELO_STD = "Self-play/Opponent ELO Std"
EXPLOITER_SHARE = "Self-play/Exploiter Share"
SCORES = {Outcome.WIN: 1.0, Outcome.DRAW: 0.5, Outcome.LOSS: 0.0}
OUTCOMES: dict[Outcome, Result] = {Outcome.WIN: "win", Outcome.DRAW: "draw", Outcome.LOSS: "loss"}


class GhostController:
    """Ghosts of all behaviors in self-play, and the teams' turns."""

    def __init__(
        self, collectors: CollectorPool, simulators: Sized, report: Callable[[EventRecord], None], grace: float = 60.0
    ) -> None:
        """`simulators` are connected. The turn of a team that none plays passes on after `grace` seconds."""
        self._collectors = collectors
        self._simulators = simulators
        self._report = report
        self._grace = grace
        self._present: dict[str, set[int]] = {}
        """Session id of a simulator -> the teams of behaviors in self-play that it plays."""
        self._missed_since: float | None = None
        """Since when no simulator plays the team that learns; None while one does."""
        self._passed_over: set[int] = set()
        """Teams whose turn was passed on because no simulator played them."""
        self._ghosts: dict[str, Ghost] = {}
        self._teams: dict[int, set[str]] = {}
        """Team -> its behaviors, as simulators brought them."""
        self._queue: deque[int] = deque()
        """Teams whose turn comes, the next one first."""
        self.learning: int | None = None
        """The team whose turn it is; None before the first simulator has begun to play."""
        self._begun = False
        self._sent: dict[str, int | None] = {}
        """Behavior -> the team of it that learns, as the collectors know it."""
        self._warned: set[str] = set()

    def ghost(self, behavior: str) -> Ghost | None:
        """Return the ghost of a behavior; None if it is not in self-play."""
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
        """Return the metrics of each summary of a behavior: the learning team, if it is in self-play."""
        return {} if self.learning is None or behavior not in self._ghosts else {LEARNING_TEAM: self.learning}

    def join(self, ghost: Ghost, saved: State | None) -> None:
        """Add a behavior whose ghost has begun, or was restored with the turns of `state`."""
        if saved is not None:
            self.learning = saved["learning"]
            self._queue = deque(saved["queue"])
        self._ghosts[ghost.behavior] = ghost

    def team_announced(self, behavior: str, team: int) -> None:
        """Add a team that a simulator has announced for the first time."""
        if behavior not in self._ghosts:
            return
        self._teams.setdefault(team, set()).add(behavior)
        if self._begun:
            self._enqueue(team)
            if self._assign_opponents(self._ghosts[behavior]):
                self._collectors.reset()

    def begin(self) -> None:
        """Begin the first turn, once a simulator plays: all of its teams are known then. Later calls do nothing."""
        if self._begun or not self._teams:
            return
        self._begun = True
        for team in sorted(self._teams):
            self._enqueue(team)
        for ghost in self._ghosts.values():
            self._assign_opponents(ghost)
        assert self.learning is not None, "there is a team"
        self._report_turn(f"Team {self.learning} learns, all others play frozen policies")

    def plays(self, session_id: str, sides: Iterable[tuple[str, int]]) -> None:
        """Set the behaviors and teams that a simulator plays; called again when it adds some."""
        self._present[session_id] = {team for behavior, team in sides if behavior in self._ghosts}
        self._passed_over -= self._present[session_id]

    def left(self, session_id: str) -> None:
        """Remove a simulator."""
        self._present.pop(session_id, None)

    def _is_played(self, team: int) -> bool:
        """Whether a simulator plays a team. True while no simulator has begun to play: nothing is known then."""
        return not any(self._present.values()) or any(team in teams for teams in self._present.values())

    def _enqueue(self, team: int) -> None:
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self._queue:
            self._queue.append(team)

    def has_turn(self, behavior: str) -> bool:
        """Whether a team of the behavior learns now."""
        return self._begun and self.learning is not None and behavior in self._teams.get(self.learning, ())

    def played(self, behavior: str, steps: int) -> None:
        """Count the steps of teams that do not learn."""
        self._ghosts[behavior].counters.ghost_steps += steps

    def exchange(self) -> None:
        """Draw opponents anew where `swap_steps` are over. Called in each loop, after learning.

        The last steps of a round are reported with it. Opponents that were drawn then would be those of before the
        update, for the whole next round; in ML-Agents, too, update and snapshot come first.
        """
        for ghost in self._ghosts.values():
            if ghost.swap_due:
                self._swap(ghost)

    def learned(self, behavior: str, step: int, *, done: bool) -> None:
        """Change turns, snapshots and opponents where that is due, after the policy has learned from a round."""
        ghost = self._ghosts[behavior]
        ghost.step, ghost.done = step, done
        if len(self._teams) <= 1 and behavior not in self._warned:
            self._warned.add(behavior)
            message = (
                f"{behavior} has self_play, but simulators have brought team {self.learning} only: it learns without "
                "opponents. Let the other side announce a team of its own (`NAME?team=1`; Unity: Team Id in Behavior "
                "Parameters), or remove self_play"
            )
            self._event("self_play_without_opponents", message, behavior=behavior, team=self.learning)
        change = False
        if ghost.team_change_due or self._is_done(self.learning):
            ghost.counters.last_team_change = step
            change = self._rotate()
        if ghost.save_due:
            ghost.save()
        if change:
            self._begin_turn(step)
        elif ghost.swap_due:
            self._swap(ghost)

    def reset(self, behavior: str) -> int | None:
        """Keep an exploiter that is to be reset as a snapshot; return the number of the reset, None if none is due."""
        ghost = self._ghosts[behavior]
        if (why := ghost.reset_due) is None:
            return None
        ghost.save()
        ghost.exploit = Exploit(ghost.exploit.resets + 1, ghost.step)
        snapshot = ghost.pool.snapshots[-1].number
        data = {"behavior": behavior, "step": ghost.step, "snapshot": snapshot, "resets": ghost.exploit.resets}
        message = f"{behavior} is reset after step {ghost.step}: {why}. Snapshot {snapshot} is the policy so far"
        self._report(EventRecord(name="exploiter_reset", message=message, data=data))
        return ghost.exploit.resets

    def opponents_changed(self, behavior: str) -> None:
        """Draw the opponents of a behavior anew, since there are others: for the episodes that begin from now on."""
        if self._begun:
            self._swap(self._ghosts[behavior])

    def watch(self, now: float) -> None:
        """Pass the turn on when no simulator has played the team that learns for a while. Called in each loop.

        `now` is in seconds, of any clock. If no simulator plays another team either, the turn stays where it is.
        """
        learning = self.learning
        is_done = learning in self._teams and self._is_done(learning)
        if not self._begun or learning is None or is_done or self._is_played(learning):
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
            message = (
                f"Team {learning} is to learn, and no simulator plays it: learning waits. Start a simulator that "
                f"brings it; after {self._grace:g} s (simulators.grace_seconds) the turn passes on to a team that is "
                "played"
            )
            self._event("self_play_team_missing", message, team=learning)
        elif now - self._missed_since >= self._grace:
            ghosts = [self._ghosts[behavior] for behavior in self._teams.get(learning, ())]
            for ghost in ghosts:
                ghost.counters.last_team_change = ghost.step
            if self._rotate():
                self._missed_since = None
                self._begin_turn(max((ghost.step for ghost in ghosts), default=0))

    def _rotate(self) -> bool:
        """Give the turn to the next team that is not done and is played. Return whether it is another one."""
        assert self.learning is not None
        if not self._is_played(self.learning):
            self._report_passing(self.learning)
        for place, team in enumerate(self._queue):
            if self._is_done(team):
                continue
            if not self._is_played(team):
                self._report_passing(team)
                continue
            self._queue.append(self.learning)
            self._queue.rotate(-place)
            self.learning = self._queue.popleft()
            return True
        return False

    def _begin_turn(self, step: int) -> None:
        """Draw opponents for all behaviors, and reset the simulators; the turn before ended at `step`."""
        for ghost in self._ghosts.values():
            self._swap(ghost)
        self._collectors.reset()
        # ML-Agents logs this line, at the level debug.
        line = f"Learning team {self.learning} swapped on step {step}"
        self._report_turn(f"Team {self.learning} learns from step {step} on", step=step, log_line=line)

    def _report_turn(self, message: str, **data: object) -> None:
        """Report the learning team whose turn begins, as an event and in the metrics."""
        learning = self.learning
        assert learning is not None, "a turn has begun"
        behaviors = sorted(self._teams.get(learning, ()))
        self._report(
            EventRecord(
                name="self_play_turn_began",
                message=f"{message} ({', '.join(behaviors)})" if behaviors else message,
                data={"team": learning, "behaviors": behaviors, **data},
            )
        )
        for ghost in self._ghosts.values():
            ghost.recorder.write(ghost.step, {LEARNING_TEAM: learning})

    def _report_passing(self, team: int) -> None:
        """Report once, until the team is played again, that its turn is passed on."""
        if team not in self._passed_over:
            self._passed_over.add(team)
            message = f"Team {team} gets no turn to learn, since no simulator plays it; it is in the queue again"
            self._event("self_play_turn_passed", message, team=team)

    def _is_done(self, team: int | None) -> bool:
        """Return whether all behaviors that learn in a team's turn are done."""
        return team is not None and all(self._ghosts[behavior].done for behavior in self._teams.get(team, ()))

    def _swap(self, ghost: Ghost) -> None:
        teams = {team for team, behaviors in self._teams.items() if ghost.behavior in behaviors}
        ghost.swap(teams, self.learning, len(self._simulators))
        self._assign_opponents(ghost)

    def _assign_opponents(self, ghost: Ghost) -> bool:
        """Send the collectors the learning team of a behavior and its opponents. Return whether that team changed."""
        learning = self.learning if self.has_turn(ghost.behavior) else None
        changed = self._sent.setdefault(ghost.behavior, learning) != learning
        self._sent[ghost.behavior] = learning
        self._collectors.assign_opponents(ghost.behavior, ghost.assignment(learning), ghost.frozen)
        return changed

    def _event(self, name: str, message: str, **data: object) -> None:
        self._report(EventRecord(name=name, level="warning", message=message, data=data))

    def ended(self, event: MatchesEnded, step: int, at: float) -> list[PlayedMatch]:
        """Rate matches and return them for the ledger; `step` is how far the behavior is, `at` the time (UTC)."""
        ghost = self._ghosts[event.behavior]
        played = [self._rated(ghost, match, step, at) for match in event.matches if match.opponents]
        if any(match.rated for match in played):
            behaviors = {behavior for match in event.matches for behavior, _, _ in match.opponents}
            ratings = [  # of all possible opponents
                rating
                for behavior in sorted(behaviors)
                for snapshot in self._ghosts[behavior].candidates
                if (rating := self._ghosts[behavior].ratings.of(snapshot.number)) is not None
            ]
            ghost.recorder.measure(OPPONENT_ELO_MEAN, fmean(ratings), Aggregation.LAST)
            ghost.recorder.measure(OPPONENT_ELO_STD, pstdev(ratings), Aggregation.LAST)
        return played

    def _rated(self, ghost: Ghost, match: EndedMatch, step: int, at: float) -> PlayedMatch:
        outcome, counts = match.outcome, match.settled
        if match.truncated:
            if ghost.settings.interrupted_games == "draw":
                outcome = Outcome.DRAW
            else:
                counts = False
        participants = [PlayedParticipant(behavior=ghost.behavior, team=match.team, snapshot=None, step=ghost.step)]
        opponents = []
        for behavior, team, key in match.opponents:
            opponent = self._ghosts[behavior]
            snapshot = None if key < 0 else key
            participants.append(_frozen_participant(opponent, team, key))
            opponents.append((opponent.ratings, snapshot))
            if counts and snapshot is not None:
                opponent.payoffs.played(snapshot, SCORES[outcome])
                if ghost.settings.exploiter is not None and opponent.external.find(snapshot) is not None:
                    ghost.exploit.played(SCORES[outcome])
                    ghost.recorder.measure(EXPLOITER_SHARE, ghost.exploit.share, Aggregation.LAST)
        rated = counts and rate(ghost.ratings, opponents, SCORES[outcome])
        if counts:
            ghost.recorder.measure(ELO, ghost.ratings.current)
        ghost.counters.matches += 1
        return PlayedMatch(
            number=ghost.counters.matches,
            behavior=ghost.behavior,
            simulator=match.simulator,
            at=at,
            step=step,
            participants=tuple(participants),
            outcome=OUTCOMES[outcome],
            truncated=match.truncated,
            rated=rated,
            elo=ghost.ratings.current,
        )

    def state(self, behavior: str) -> State:
        """Return the state of a behavior and of the turns for a checkpoint; `join` continues from it."""
        ghost = self._ghosts[behavior].state_dict()
        return {"learning": self.learning, "queue": list(self._queue), "ghost": ghost}


def _frozen_participant(ghost: Ghost, team: int, key: int) -> PlayedParticipant:
    """Return the participant that a frozen policy was."""
    external = ghost.external.find(key)
    if external is not None:
        return PlayedParticipant(
            behavior=external.behavior,
            team=team,
            snapshot=external.snapshot,
            step=external.step,
            checkpoint=external.checkpoint,
            scripted=external.name if external.checkpoint is None else None,
        )
    step = ghost.steps_of(key)
    return PlayedParticipant(
        behavior=ghost.behavior, team=team, snapshot=None if key < 0 else key, step=-1 if step is None else step
    )
