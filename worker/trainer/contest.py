"""Self-play of one attempt: the teams that simulators bring, their turns, and the matches that are told of."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from worker.collector.notices import GhostStepsPlayed, MatchesEnded, TeamAnnounced
from worker.learner import BehaviorLearner, Learner
from worker.link import Match, MatchesPlayed
from worker.selfplay.controller import Field, GhostController
from worker.trainer.superior import Events, Superior

MATCHES_SECONDS: Final = 0.5


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
    ) -> None:
        """`learners` grows as behaviors come; `reset` makes simulators begin anew, `simulators` counts them."""
        self._superior = superior
        self._events = Events(superior)
        self._learners = learners
        self.ghosts = GhostController(field, reset, simulators, self._events.post)
        self._teams: dict[str, set[int]] = {}
        """Of each behavior, as simulators brought them."""
        self._matches: list[Match] = []
        """Those that the superior has not been told of."""
        self._next_matches = 0.0

    def team_announced(self, notice: TeamAnnounced, *, is_played: bool) -> None:
        """Let a team take part in self-play; tell where several teams train one policy together.

        `is_played`: whether a simulator has begun to play the behavior.
        """
        teams = self._teams.setdefault(notice.behavior, set())
        teams.add(notice.team)
        if self.ghosts.ghost(notice.behavior) is not None:
            self.ghosts.team_announced(notice.behavior, notice.team)
            if is_played:
                self.ghosts.begin()
        elif len(teams) == 2 and isinstance(self._learners.get(notice.behavior), BehaviorLearner):
            self._events.tell(
                "teams_train_together",
                f"Simulators have brought several teams of {notice.behavior}, which has no self_play: all of them "
                "train one policy together. Enable self_play to train adversarial games",
                level="warning",
                data={"behavior": notice.behavior},
            )

    def started(self, behaviors: set[str]) -> None:
        """Take note that a simulator has begun to play."""
        if any(self.ghosts.ghost(behavior) for behavior in behaviors):
            self.ghosts.begin()

    def played(self, notice: GhostStepsPlayed) -> None:
        """Count the steps of opponents."""
        self.ghosts.played(notice.behavior, notice.steps)

    def ended(self, notice: MatchesEnded) -> None:
        """Rate matches, and remember to tell of them."""
        step = self._learners[notice.behavior].step
        self._matches += self.ghosts.ended(notice, step, time.time())

    def take_turns(self) -> None:
        """Let teams learn in turns, where it is time."""
        for learner in self._learners.values():
            if isinstance(learner, BehaviorLearner):
                learner.take_turn()

    def tell(self, *, at_once: bool = False) -> None:
        """Report the matches since the last time, every half second or at once."""
        now = time.monotonic()
        if self._matches and (at_once or now >= self._next_matches):
            self._next_matches = now + MATCHES_SECONDS
            self._superior.post(MatchesPlayed(matches=self._matches))
            self._matches = []
