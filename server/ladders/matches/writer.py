"""The matches that an attempt writes."""

from collections.abc import Mapping, Sequence

from server.ladders.matches.repository import MatchLedger
from server.ladders.refs import PlayedMatch
from server.runs.attempts.repository import AttemptFence


class MatchWriter:
    """Writes matches of one attempt. Each method is one transaction, and raises LeaseLost."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def append(self, played: Sequence[PlayedMatch]) -> None:
        """Enter finished matches. Entering the same matches twice is safe."""
        with self._fence.write() as (session, run):
            MatchLedger(session).append(run.id, self._fence.number, played)

    def resume(self, newest: Mapping[str, int]) -> None:
        """Supersede the matches of earlier attempts beyond the checkpoint from which this one continues.

        `newest`: the number of each behavior's newest match that the checkpoint counts.
        """
        with self._fence.write() as (session, run):
            MatchLedger(session).resume(run.id, self._fence.number, newest)
