"""How the workers are heard: in the log of this machine, and, where only this machine can know, among the run's events.

Both get the same sentence. Words for the run are left in the background, best effort: no game waits for them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ludus.sdk.errors import Failure
from ludus.sdk.join import Joiner, Report, Target

CHORUS_SECONDS: Final = 10.0
"""What one worker said of the run in this time, another one need not say again."""
MOST_WAITING: Final = 30
"""Words that wait to be left; further ones are not. The gateway takes as many in a minute."""
LAST_WORDS_SECONDS: Final = 3.0
"""How long the last words may take when everything else has ended."""

Tell = Callable[[Failure], None]
"""Takes what is wrong here to people."""


class Refusal(Failure):
    """What the server said when it ended a session: the run knows it already."""


class Words:
    """Leaves words on the run, one after the other."""

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._waiting: deque[tuple[str, Failure]] = deque()
        self._work: asyncio.Task[None] | None = None

    def leave(self, incarnation: str, problem: Failure) -> None:
        """Leave word soon. Needs a running event loop."""
        if len(self._waiting) == MOST_WAITING:
            return
        self._waiting.append((incarnation, problem))
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._leave_all())

    async def close(self) -> None:
        """Give what has not arrived yet a moment."""
        if self._work is None:
            return
        try:
            await asyncio.wait({self._work}, timeout=LAST_WORDS_SECONDS)
        finally:
            self._work.cancel()

    async def _leave_all(self) -> None:
        while self._waiting:
            incarnation, problem = self._waiting.popleft()
            await self._joiner.leave_word(incarnation, problem)


class Voice:
    """Speaks for one worker, and knows whose trouble it speaks of."""

    def __init__(self, words: Words, target: Target, say: Report, about_run: Report) -> None:
        self.say = say
        """Says something here alone."""
        self.about_run = about_run
        """Says, here alone, what all workers hear of the run alike."""
        self.life = target
        """The run, as whom the present or last game plays, or the next one will."""
        self._words = words
        self._lived = False
        """Whether a game has played as that."""

    def begin_life(self) -> Target:
        """Return as whom a game plays that begins a conversation."""
        self.await_life()
        self._lived = True
        return self.life

    def await_life(self) -> None:
        """Note that a new game is waited for: what goes wrong until it dials is not the last one's trouble."""
        if self._lived:
            self.life, self._lived = self.life.reborn(), False

    def tell(self, problem: Failure, then: str = "") -> None:
        """Say what is wrong, and what comes of it, and leave word of the former."""
        self.say(logging.WARNING, f"{problem.sentence}\n{then}" if then else problem.sentence)
        self.leave_word(problem)

    def leave_word(self, problem: Failure) -> None:
        """Leave word on the run alone, unless that has said it itself."""
        if not isinstance(problem, Refusal):
            self._words.leave(self.life.incarnation, problem)


def voices(count: int, words: Words, target: Target, say: Report) -> list[Voice]:
    """Return a voice for each worker; the first one's first life is the target's own incarnation."""
    if count == 1:
        return [Voice(words, target, say, say)]
    chorus = _Chorus(say)
    return [
        Voice(words, target.reborn() if worker else target, _prefixed(say, worker), chorus.part(worker))
        for worker in range(count)
    ]


def _prefixed(say: Report, worker: int) -> Report:
    return lambda level, sentence: say(level, f"worker {worker}: {sentence}")


class _Chorus:
    """Lets what several workers hear of the run alike be said once, by the first of them."""

    def __init__(self, say: Report) -> None:
        self._say = say
        self._said: dict[str, tuple[int, float]] = {}
        """Sentence -> who said it last, and when."""

    def part(self, worker: int) -> Report:
        """Return what reports for one worker."""
        own = _prefixed(self._say, worker)

        def report(level: int, sentence: str) -> None:
            now = time.monotonic()
            speaker, at = self._said.get(sentence, (worker, now))
            if speaker == worker or now - at > CHORUS_SECONDS:
                self._said[sentence] = (worker, now)
                own(level, sentence)

        return report
