"""The rating job: rates the newest matches of all ladders.

A long ledger is rated in batches, each of them one short transaction at its end, so that it holds up no other writer;
reading and arithmetic happen outside of it. Several jobs may run: of two that work on one batch one is dropped.
"""

from server.kit.db.database import Database
from server.kit.jobs import Job
from server.ladders.rating_systems import RatingTable
from server.ladders.ratings.repository import BATCH, Batch, RatingRepository

PAUSE_SECONDS = 2.0
"""Pause between two rounds, when nothing is left to rate."""


class RatingJob:
    """Rates matches. Keeps nothing between two calls."""

    def __init__(self, database: Database, batch: int = BATCH) -> None:
        self._database = database
        self._batch = batch

    def job(self) -> Job:
        """Return the job. What is left to rate is rated at once: a round has a price beside that of its matches."""
        return Job("ratings", self.rate, again_seconds=0.0)

    def rate(self) -> int:
        """Rate at most one batch of each ladder that waits; return how many matches were dealt with."""
        with self._database.read() as session:
            waiting = RatingRepository(session).pending()
        return sum(self.rate_ladder(ladder_id) for ladder_id in waiting)

    def rate_ladder(self, ladder_id: str) -> int:
        """Rate the next batch of a ladder; return how many matches were dealt with."""
        with self._database.read() as session:
            ratings = RatingRepository(session)
            batch = ratings.load(ladder_id, self._batch)
            if batch is None:
                return 0
            book = RatingTable(batch.standings, lambda player, step: ratings.earlier(ladder_id, player, step))
            for game in batch.games:
                book.play(game)
        return self._store(batch, book)

    def _store(self, batch: Batch, book: RatingTable) -> int:
        with self._database.write() as session:
            stored = RatingRepository(session).store(batch, book)
        return batch.through - batch.after if stored else 0
