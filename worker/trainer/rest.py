"""Rest: collectors hand over what they hold into a checkpoint, where lockstep makes that possible.

With `threaded: true` it depends on the clock which version acts on a step, so that there is nothing exact to go on
from, and in self-play opponents are drawn anew; there, simulators begin new episodes when a run goes on.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from ludus.collector.handover import State
from server.config.config import CloneConfig, RunConfig
from worker.collectors.notices import CollectorDied, HandedOver, Notice
from worker.trainer.learner import BehaviorLearner, Learner

PATIENCE_SECONDS: Final = 10.0
"""How long simulators are waited for that can go back; those that compute longer begin anew after a resume."""
ANSWER_SECONDS: Final = 10.0
"""How long a collector may take beyond that, before the checkpoint is written without any of them."""


def can_go_on(config: RunConfig, collectors: Sequence[State]) -> bool:
    """Whether what was handed over is of use: every behavior learns in lockstep now, too."""
    behaviors = {name for each in collectors for name in each["lanes"]}
    sections = [config.behavior(name) for name in behaviors]
    teachers = [section for section in sections if section is not None and not isinstance(section, CloneConfig)]
    return not config.checkpoint_settings.inference and not any(one.threaded or one.self_play for one in teachers)


class Collectors(Protocol):
    """What is asked of the collectors: `worker.collectors.pool.CollectorPool`."""

    def hold(self, patience: float) -> set[int]:
        """Let nobody be answered, and every collector hand over; return which will."""

    def release(self) -> None:
        """Let everybody go on."""

    def poll(self, timeout: float) -> list[Notice]:
        """Return what happened, waiting at most `timeout` seconds for the first notice."""


class Rest:
    """Brings the collectors of one attempt to rest."""

    def __init__(self, collectors: Collectors, learners: Mapping[str, Learner], take: Callable[[Notice], None]) -> None:
        """`take` handles what collectors report meanwhile: it was delivered before they came to rest."""
        self._collectors = collectors
        self._learners = learners
        self._take = take

    @contextmanager
    def hold(self) -> Iterator[list[State]]:
        """Yield what each collector holds, in their order; nothing changes until the end of the context.

        Yield nothing where there is nothing to go on from exactly.
        """
        if not self._is_lockstep():
            yield []
            return
        try:
            yield self._handed_over()
        finally:
            self._collectors.release()

    def _is_lockstep(self) -> bool:
        teachers = [learner for learner in self._learners.values() if isinstance(learner, BehaviorLearner)]
        return bool(teachers) and not any(one.config.threaded or one.config.self_play for one in teachers)

    def _handed_over(self) -> list[State]:
        asked, states = self._collectors.hold(PATIENCE_SECONDS), dict[int, State]()
        deadline = time.monotonic() + PATIENCE_SECONDS + ANSWER_SECONDS
        while asked - states.keys() and (left := deadline - time.monotonic()) > 0:
            for notice in self._collectors.poll(left):
                match notice:
                    case HandedOver():
                        states[notice.collector] = notice.state
                    case CollectorDied():
                        asked.discard(notice.index)
                        self._take(notice)
                    case _:
                        self._take(notice)
        if asked - states.keys():
            return []
        return [states.get(index, _NOTHING) for index in range(max(states, default=-1) + 1)]


_NOTHING: Final[State] = {"lanes": {}, "sessions": []}
