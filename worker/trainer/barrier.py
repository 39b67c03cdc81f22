"""The barrier before a checkpoint: collectors stop answering and hand over snapshots of their sessions.

Only in lockstep. With `threaded: true` the clock decides which version acts on a step, so that no run can be continued
exactly, and in self-play opponents are drawn again. There, simulators begin new episodes when a run goes on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ludus.collector.snapshots.state import State
from ludus.config.behavior import CloneConfig
from ludus.config.run import RunConfig
from worker.collectors.events import CollectorDied, CollectorEvent, EdgeCollectorLeft, HandedOver
from worker.trainer.attempt import Attempt
from worker.trainer.learner import BehaviorLearner

SIMULATOR_SECONDS: Final = 10.0
"""How long to wait for simulators that can go back; those that take longer begin new episodes after a resume."""
ANSWER_SECONDS: Final = 10.0
"""How long a collector may take beyond that; then the checkpoint is written without any snapshot."""
EMPTY: Final[State] = {"lanes": {}, "sessions": []}


def can_go_on(config: RunConfig, collectors: Sequence[State]) -> bool:
    """Return whether snapshots can be used: all of their behaviors learn in lockstep in this attempt."""
    behaviors = {name for each in collectors for name in each["lanes"]}
    sections = [section for name in behaviors if (section := config.behavior(name)) is not None]
    return not config.checkpoint_settings.inference and all(
        isinstance(section, CloneConfig) or not (section.threaded or section.self_play) for section in sections
    )


class CheckpointBarrier:
    """Brings the collectors of one attempt to rest for a checkpoint."""

    def __init__(self, attempt: Attempt, handle: Callable[[CollectorEvent], None]) -> None:
        """`handle` takes the events that collectors report before they are at rest."""
        self._attempt = attempt
        self._handle = handle

    @contextmanager
    def hold(self) -> Iterator[list[State]]:
        """Yield each collector's snapshot, by its index; collectors stay at rest until the end of the context.

        Yield an empty list where nothing can be continued exactly.
        """
        learners = [one for one in self._attempt.learners.values() if isinstance(one, BehaviorLearner)]
        if not learners or any(one.config.threaded or one.config.self_play for one in learners):
            yield []
            return
        pool, states = self._attempt.pool, dict[int, State]()
        try:
            asked = pool.hold(SIMULATOR_SECONDS)
            deadline = time.monotonic() + SIMULATOR_SECONDS + ANSWER_SECONDS
            while asked - states.keys() and (left := deadline - time.monotonic()) > 0:
                for event in pool.poll(left):
                    if isinstance(event, HandedOver):
                        states[event.collector] = event.state
                        continue
                    if isinstance(event, CollectorDied | EdgeCollectorLeft):
                        asked.discard(event.index)
                    self._handle(event)
            complete = not asked - states.keys()
            yield [states.get(index, EMPTY) for index in range(max(states, default=-1) + 1)] if complete else []
        finally:
            pool.release()
