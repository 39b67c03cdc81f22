"""Self-play of one attempt: the teams that simulators bring, their turns, and the matches that are told of."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ludus.protocol.spec import team_of
from worker.collectors.notices import GhostStepsPlayed, MatchesEnded, TeamAnnounced
from worker.selfplay.controller import Field, GhostController
from worker.trainer.learner import BehaviorLearner, Learner
from worker.trainer.link import Match, MatchesPlayed, MatchesResumed, SelfPlayStatus
from worker.trainer.superior import Events, Superior

MATCHES_SECONDS: Final = 0.5
STATUS_SECONDS: Final = 2.0
"""How often ratings are told, if they have changed; whose turn it is is told at once."""


class Contest:
    """Who plays against whom, and how it ends."""

    def __init__(
        self,
        field: Field,
        superior: Superior,
        learners: Mapping[str, Learner],
        *,
        reset: Callable[[], None],
        simulators: Callable[[], int],
        patience: float,
    ) -> None:
        """`learners` grows as behaviors come; `reset` makes simulators begin anew, `simulators` counts them.

        A team whose turn it is and that nobody plays is waited for for `patience` seconds.
        """
        self._superior = superior
        self._events = Events(superior)
        self._learners = learners
        self.ghosts = GhostController(field, reset, simulators, self._events.post, patience)
        self._teams: dict[str, set[int]] = {}
        """Of each behavior, as simulators brought them."""
        self._matches: list[Match] = []
        """Those that the superior has not been told of."""
        self._next_matches = 0.0
        self._told: SelfPlayStatus | None = None
        self._next_status = 0.0

    def team_announced(self, notice: TeamAnnounced, *, is_played: bool) -> None:
        """Let a team take part in self-play; tell where several teams train one policy together.

        `is_played`: whether a simulator has begun to play the behavior.
        """
        teams = self._teams.setdefault(notice.behavior, set())
        teams.add(notice.team)
        learner = self._learners.get(notice.behavior)
        if learner is not None and notice.team != learner.spec.team:  # that one came with the behavior itself
            self._events.tell(
                "team_announced",
                f"Simulators bring team {notice.team} of {notice.behavior}, too",
                data={
                    "behavior": notice.behavior,
                    "team": notice.team,
                    "name": f"{notice.behavior}?team={notice.team}",
                },
            )
        if self.ghosts.ghost(notice.behavior) is not None:
            self.ghosts.team_announced(notice.behavior, notice.team)
            if is_played:
                self.ghosts.begin()
        elif len(teams) == 2 and isinstance(learner, BehaviorLearner):
            self._events.tell(
                "teams_train_together",
                f"Simulators have brought several teams of {notice.behavior}, which has no self_play: all of them "
                "train one policy together. Enable self_play to train adversarial games",
                level="warning",
                data={"behavior": notice.behavior},
            )

    def resumed(self, states: Mapping[str, Any]) -> None:
        """Tell from which matches on this attempt plays anew, given the states of the checkpoint that it goes on from.

        Without a checkpoint it does from the first.
        """
        counted = {
            behavior: state["self_play"]["ghost"]["counters"]["matches"]
            for behavior, state in states.items()
            if "self_play" in state
        }
        self._superior.post(MatchesResumed(newest=counted))

    def started(self, incarnation: str, names: Sequence[str]) -> None:
        """Take note that a simulator has begun to play, under these names of behaviors; or plays more of them."""
        sides = [(name.partition("?")[0], team_of(name)) for name in names]
        self.ghosts.plays(incarnation, sides)
        if any(self.ghosts.ghost(behavior) for behavior, _ in sides):
            self.ghosts.begin()

    def left(self, incarnation: str) -> None:
        """Take note that a simulator is gone."""
        self.ghosts.left(incarnation)

    def played(self, notice: GhostStepsPlayed) -> None:
        """Count the steps of opponents."""
        self.ghosts.played(notice.behavior, notice.steps)

    def ended(self, notice: MatchesEnded) -> None:
        """Rate matches, and remember to tell of them."""
        step = self._learners[notice.behavior].step
        self._matches += self.ghosts.ended(notice, step, time.time())

    def take_turns(self) -> None:
        """Let teams learn in turns, where it is time."""
        self.ghosts.watch(time.monotonic())
        for learner in self._learners.values():
            if isinstance(learner, BehaviorLearner):
                learner.take_turn()

    def tell(self, *, at_once: bool = False) -> None:
        """Report the matches since the last time and where self-play is, now and then or at once."""
        now = time.monotonic()
        self._tell_status(now, at_once=at_once)
        if self._matches and (at_once or now >= self._next_matches):
            self._next_matches = now + MATCHES_SECONDS
            self._superior.post(MatchesPlayed(matches=self._matches))
            self._matches = []

    def _tell_status(self, now: float, *, at_once: bool) -> None:
        """Report whose turn it is and how the policies are rated, if that has changed."""
        learning, told = self.ghosts.learning, self._told
        if learning is None or (not at_once and told and told.learning_team == learning and now < self._next_status):
            return
        self._next_status = now + STATUS_SECONDS
        status = SelfPlayStatus(learning_team=learning, elo=self.ghosts.ratings)
        if status != told:
            self._told = status
            self._superior.post(status)
