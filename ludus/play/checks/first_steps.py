"""Looks at the first steps of games that play in a run, and says once what the checks find in them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ludus.play.checks.watch import GameWatch
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.spec import BehaviorSpec

STEPS: Final = 2_400
"""Decisions of each behavior that are looked at; more would cost the game its time."""


class FirstSteps:
    """Observes the games of one process: a `ludus.sdk.session.Observer`. The run itself looks at their actions."""

    def __init__(self, report: Callable[[int, str], object]) -> None:
        """`report` takes a log level and a sentence."""
        self._report = report
        self._watch: GameWatch | None = GameWatch()
        """None once it has been told what was found."""

    def __call__(self, batches: Sequence[BehaviorBatch], specs: Mapping[str, BehaviorSpec], game: str = "") -> bool:
        """Look at a step of a game, which has an id where there are several; return whether the next one is wanted."""
        watch = self._watch
        if watch is None:
            return False
        watch.look(batches, specs, game)
        if watch.steps < STEPS:
            return True
        self._watch = None
        for name, fact in watch.facts():
            self._report(logging.WARNING, f"{name}: {fact.message} {fact.remedy} ({fact.code})")
        return False
