"""Looks at the first steps of a game that plays in a run, and logs once what the checks find in them."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from ludus.checks.watch import GameWatch
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.spec import BehaviorSpec

logger = logging.getLogger("ludus.sdk")
STEPS: Final = 2_400
"""Decisions of each behavior that are looked at; more would cost the game its time."""


class FirstSteps:
    """The `ludus.sdk.session.Observer` of one game. Actions are not looked at: the run does that."""

    def __init__(self) -> None:
        self._watch: GameWatch | None = GameWatch()
        """None once it has been told what was found."""

    def __call__(self, batches: Sequence[BehaviorBatch], specs: Mapping[str, BehaviorSpec]) -> bool:
        """Look at a step; return whether the next one is wanted."""
        watch = self._watch
        if watch is None:
            return False
        watch.look(batches, specs)
        if watch.steps < STEPS:
            return True
        self._watch = None
        for name, fact in watch.facts():
            logger.warning("%s: %s %s (%s; docs/doctor.md)", name, fact.message, fact.remedy, fact.code)
        return False
