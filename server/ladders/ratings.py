"""Ratings in the database, and the job that rates the newest matches of all ladders.

Ratings, their history and the counts of pairs are a function of the ledger's counting matches in their order. They are
brought forward in batches (`load`, then `store`), each a compare-and-set on the place and the generation from which it
began: if another job has advanced them, or taken them back, in between, the batch is dropped. Reading and arithmetic
happen outside of the short transaction at a batch's end, so that it holds up no other writer."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import CursorResult, Select, delete, func, insert, select, text, tuple_, update

from server.kit.db.database import Database
from server.kit.db.keyset import PARAMETERS, parts
from server.kit.db.repository import Repository, upsert
from server.kit.jobs import Job
from server.ladders.models import (
    PENDING_SQL,
    Ladder,
    LadderMatch,
    LadderPair,
    LadderParticipant,
    LadderPlayer,
    RatingPoint,
    RunLadder,
)
from server.ladders.rating_systems import Game, Participant, Rating, RatingState, RatingTable, Tally, tally
from server.ladders.refs import PlayerKind

BATCH = 2000
"""Matches that are rated at once."""


@dataclass(frozen=True)
class Batch:
    """Matches of one ladder that come next, and where their players stand before them."""

    ladder_id: str
    after: int
    """They follow this match."""
    through: int
    """The last match that is dealt with; not all of them count."""
    generation: int
    games: Sequence[Game]
    standings: Sequence[RatingState]


@dataclass(frozen=True)
class Payoffs:
    """Results of players against each other; row against column."""

    players: Sequence[LadderPlayer]
    wins: NDArray[np.int64]
    draws: NDArray[np.int64]
    losses: NDArray[np.int64]

    @property
    def games(self) -> NDArray[np.int64]:
        """Number of matches between them."""
        return self.wins + self.draws + self.losses

    @property
    def scores(self) -> NDArray[np.float64]:
        """Mean score, a draw being half a win; NaN where they never met."""
        met = self.games
        scores = np.full(met.shape, np.nan)
        np.divide(self.wins + 0.5 * self.draws, met, out=scores, where=met > 0)
        return scores


class RatingRepository(Repository):
    """Ratings of all ladders."""

    def pending(self) -> Sequence[str]:
        """Return the ids of the ladders that have matches which are not rated yet."""
        return self._session.scalars(select(Ladder.id).where(text(PENDING_SQL)).order_by(Ladder.id)).all()

    def load(self, ladder_id: str, limit: int = BATCH) -> Batch | None:
        """Return the next matches of a ladder, at most `limit`; None if there are none, or no such ladder."""
        columns = (Ladder.rated_through, Ladder.match_seq, Ladder.generation)
        ladder = self._session.execute(select(*columns).where(Ladder.id == ladder_id)).one_or_none()
        if ladder is None or ladder.rated_through >= ladder.match_seq:
            return None
        through = min(ladder.match_seq, ladder.rated_through + limit)
        games = list(self.games(ladder_id, ladder.rated_through + 1, through))
        players = {participant.player for game in games for participant in game.participants}
        standings = self._standings(ladder_id, players)
        return Batch(ladder_id, ladder.rated_through, through, ladder.generation, games, standings)

    def games(self, ladder_id: str, first: int, last: int) -> Iterator[Game]:
        """Iterate over the matches that count, from one number to another one (inclusive).

        Two walks along primary keys, independent of the database's statistics: a join of two that have just
        been filled may be planned so badly that it never ends.
        """
        matches = (
            select(LadderMatch.seq, LadderMatch.at, LadderMatch.scored)
            .where(
                LadderMatch.ladder_id == ladder_id,
                LadderMatch.seq.between(first, last),
                LadderMatch.rated,
                LadderMatch.superseded_by.is_(None),
            )
            .order_by(LadderMatch.seq)
        )
        participants = (
            select(LadderParticipant.seq, LadderParticipant.player, LadderParticipant.rank, LadderParticipant.step)
            .where(LadderParticipant.ladder_id == ladder_id, LadderParticipant.seq.between(first, last))
            .order_by(LadderParticipant.seq, LadderParticipant.position)
        )
        of_match: dict[int, list[Participant]] = defaultdict(list)
        for seq, player, rank, step in self._session.execute(participants):
            of_match[seq].append(Participant(player, rank, step))
        for seq, played_at, scored in self._session.execute(matches):
            yield Game(seq, played_at, scored, tuple(of_match[seq]))

    def earlier(self, ladder_id: str, player: int, step: int) -> Rating | None:
        """Return a player's ratings after its last match before a step; None if there is none."""
        columns = (RatingPoint.elo, RatingPoint.mu, RatingPoint.sigma)
        same = (RatingPoint.ladder_id == ladder_id, RatingPoint.player == player, RatingPoint.step < step)
        point = self._session.execute(select(*columns).where(*same).order_by(RatingPoint.game.desc()).limit(1)).first()
        return None if point is None else Rating(*point)

    def store(self, batch: Batch, book: RatingTable) -> bool:
        """Keep what came of a batch. False, and nothing is written, if the ratings are no longer where it began."""
        statement = (
            update(Ladder)
            .where(
                Ladder.id == batch.ladder_id,
                Ladder.rated_through == batch.after,
                Ladder.generation == batch.generation,
            )
            .values(rated_through=batch.through)
        )
        moved = self._session.execute(statement)
        assert isinstance(moved, CursorResult)
        if moved.rowcount == 0:
            return False
        played = {point.player for point in book.points}
        self._update_players(batch.ladder_id, [book.standings[player] for player in sorted(played)])
        if book.points:
            rows = [
                {
                    "ladder_id": batch.ladder_id,
                    "player": point.player,
                    "game": point.game,
                    "seq": point.seq,
                    "step": point.step,
                    "at": point.at,
                    **point.rating._asdict(),
                }
                for point in book.points
            ]
            self._session.connection().execute(insert(RatingPoint), rows)  # past the unit of work, which costs more
        self._add(batch.ladder_id, {pair: Tally(*results) for pair, results in book.tallies.items()})
        return True

    def rewind(self, ladder_id: str, first: int) -> None:
        """Take back the ratings, histories and counts of match `first` and of all that follow it.

        To be called before those matches are marked, in a transaction that has locked the ladder's row. Matches that
        retention has deleted are not taken back: the ratings after them are the beginning.
        """
        oldest = select(func.min(LadderMatch.seq)).where(LadderMatch.ladder_id == ladder_id)
        rated = self._session.scalar(select(Ladder.rated_through).where(Ladder.id == ladder_id)) or 0
        first = max(first, self._session.scalar(oldest) or rated + 1)
        if first <= rated:
            if first <= 1:
                self._forget(ladder_id)
            else:
                counts = tally(self.games(ladder_id, first, rated)).items()
                self._add(ladder_id, {pair: Tally(-wins, -draws, -losses) for pair, (wins, draws, losses) in counts})
                empty = (LadderPair.wins == 0, LadderPair.draws == 0, LadderPair.losses == 0)
                self._session.execute(delete(LadderPair).where(LadderPair.ladder_id == ladder_id, *empty))
                self._return(ladder_id, first)
        place = {"rated_through": min(rated, first - 1), "generation": Ladder.generation + 1}
        self._session.execute(update(Ladder).where(Ladder.id == ladder_id).values(**place))

    def met(self, ladder_id: str, limit: int) -> Sequence[int]:
        """Return the numbers of at most `limit` players, the newest, of whom each has met another one of them."""
        newest = (
            select(LadderPlayer.id)
            .where(LadderPlayer.ladder_id == ladder_id, LadderPlayer.games > 0)
            .order_by(LadderPlayer.id.desc())
            .limit(limit)
        )
        numbers = self._session.scalars(newest).all()
        of_them = LadderPair.first.in_(newest) | LadderPair.second.in_(newest)
        query = select(LadderPair.first, LadderPair.second).where(LadderPair.ladder_id == ladder_id, of_them)
        opponents: defaultdict[int, set[int]] = defaultdict(set)
        for first, second in self._session.connection().execute(query):
            opponents[first].add(second)
            opponents[second].add(first)
        players: set[int] = set()
        for number in numbers:
            pair = {number}
            if not opponents[number] & players:
                pair.add(max(opponents[number], default=number))  # whom it met, so that it does not stand alone
                if pair == {number}:
                    continue  # it has met no other player, only itself
            if len(players | pair) <= limit:
                players |= pair
        return sorted(players)

    def payoffs(self, ladder_id: str, players: Sequence[LadderPlayer]) -> Payoffs:
        """Return how each of some players, in the order of their numbers, did against each other one."""
        numbers = np.array([player.id for player in players], np.int64)
        results = np.zeros((3, len(players), len(players)), np.int64)
        columns = (LadderPair.first, LadderPair.second, LadderPair.wins, LadderPair.draws, LadderPair.losses)
        query = select(*columns).where(LadderPair.ladder_id == ladder_id)
        if 0 < len(players) <= PARAMETERS:
            indexes = numbers.tolist()
            query = query.where(LadderPair.first.in_(indexes), LadderPair.second.in_(indexes))
        rows = self._session.connection().execute(query).all()  # tens of thousands: not as objects
        pairs = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 5)
        pairs = pairs[np.isin(pairs[:, :2], numbers).all(axis=1)]
        first, second = np.searchsorted(numbers, pairs[:, :2]).T
        results[:, first, second] = pairs[:, 2:].T
        results[:, second, first] = pairs[:, :1:-1].T
        return Payoffs(players, *results)

    def history(self, player: LadderPlayer, points: int) -> Sequence[RatingPoint]:
        """Return a player's ratings after at most `points` of its matches, evenly spaced, with the newest one."""
        count = min(points, player.games)
        games = [player.games * (index + 1) // count for index in range(count)]
        of_it = (RatingPoint.ladder_id == player.ladder_id, RatingPoint.player == player.id)
        points_of_player: list[RatingPoint] = []
        for part in parts(games):
            query = select(RatingPoint).where(*of_it, RatingPoint.game.in_(part)).order_by(RatingPoint.game)
            points_of_player += self._session.scalars(query)
        return points_of_player

    def has_rated(self, run_id: str) -> bool:
        """Return whether all matches of a run are in the ratings of its ladder."""
        newest = select(func.max(LadderMatch.seq)).where(LadderMatch.run_id == run_id).scalar_subquery()
        own = select(RunLadder.ladder_id).where(RunLadder.run_id == run_id)
        waiting = select(Ladder.id).where(Ladder.id.in_(own), Ladder.rated_through < newest)
        return self._session.scalar(waiting) is None

    def of_policies(self, run_id: str, points: int) -> Mapping[str, Sequence[RatingPoint]]:
        """Return the `history` of the policies that a run trains, by behavior; empty before its first rated match."""
        own = select(RunLadder.ladder_id).where(RunLadder.run_id == run_id)
        same = (LadderPlayer.run_id == run_id, LadderPlayer.kind == PlayerKind.POLICY, LadderPlayer.games > 0)
        policies = self._session.scalars(select(LadderPlayer).where(LadderPlayer.ladder_id.in_(own), *same))
        return {str(policy.behavior): self.history(policy, points) for policy in policies.all()}

    def _forget(self, ladder_id: str) -> None:
        """Set everything back to the beginning."""
        self._session.execute(delete(LadderPair).where(LadderPair.ladder_id == ladder_id))
        self._session.execute(delete(RatingPoint).where(RatingPoint.ladder_id == ladder_id))
        self._session.execute(update(LadderPlayer).where(LadderPlayer.ladder_id == ladder_id).values(_INITIAL))

    def _return(self, ladder_id: str, first: int) -> None:
        """Reset the ratings of the players of match `first` and later ones to those before it."""
        later = (LadderParticipant.ladder_id == ladder_id, LadderParticipant.seq >= first)
        affected = self._session.scalars(select(LadderParticipant.player).where(*later).distinct()).all()
        for part in parts(affected):
            of_them = (RatingPoint.ladder_id == ladder_id, RatingPoint.player.in_(part))
            self._session.execute(delete(RatingPoint).where(*of_them, RatingPoint.seq >= first))
            players = (LadderPlayer.ladder_id == ladder_id, LadderPlayer.id.in_(part))
            self._session.execute(update(LadderPlayer).where(*players).values(_INITIAL))
            newest = self._session.scalars(_newest(ladder_id, part))
            back = [RatingState(point.player, Rating(point.elo, point.mu, point.sigma), point.game) for point in newest]
            self._update_players(ladder_id, back)

    def _standings(self, ladder_id: str, players: Collection[int]) -> list[RatingState]:
        """Return where players stand; of snapshots also whose they are."""
        states: list[RatingState] = []
        parents: dict[tuple[str | None, str | None], int] = {}
        for part in parts(sorted(players)):
            policies = _of_players(ladder_id).where(LadderPlayer.id.in_(part))
            rows = self._session.execute(policies).all()
            parents |= self._policies(ladder_id, {row.run_id for row in rows if row.kind == PlayerKind.SNAPSHOT})
            for row in rows:
                parent = parents.get((row.run_id, row.behavior)) if row.kind == PlayerKind.SNAPSHOT else None
                rating = Rating(row.elo, row.mu, row.sigma)
                states.append(RatingState(row.id, rating, row.games, row.fixed, parent))
        return states

    def _policies(self, ladder_id: str, runs: Collection[str | None]) -> dict[tuple[str | None, str | None], int]:
        """Return the numbers of the learning policies of some runs, by run and behavior."""
        statement = _of_players(ladder_id).where(
            LadderPlayer.kind == PlayerKind.POLICY, LadderPlayer.run_id.in_(sorted(run for run in runs if run))
        )
        return {(row.run_id, row.behavior): row.id for row in self._session.execute(statement)}

    def _update_players(self, ladder_id: str, standings: Sequence[RatingState]) -> None:
        rows = [
            {"ladder_id": ladder_id, "id": state.player, "games": state.games, **state.rating._asdict()}
            for state in standings
        ]
        if rows:
            self._session.execute(update(LadderPlayer), rows)

    def _add(self, ladder_id: str, tallies: Mapping[tuple[int, int], Tally]) -> None:
        """Add to the counts of pairs."""
        if not tallies:
            return
        rows = [
            {"ladder_id": ladder_id, "first": first, "second": second, **results._asdict()}
            for (first, second), results in sorted(tallies.items())
        ]
        statement = upsert(self._session, LadderPair)
        added = {name: getattr(LadderPair, name) + statement.excluded[name] for name in Tally._fields}
        keys = (LadderPair.ladder_id, LadderPair.first, LadderPair.second)
        self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=added), rows)


_INITIAL = {
    "elo": LadderPlayer.initial_elo,
    "mu": LadderPlayer.initial_mu,
    "sigma": LadderPlayer.initial_sigma,
    "games": 0,
}
"""Where a player stands before its first match."""


def _of_players(ladder_id: str) -> Select[Any]:
    names = ("id", "kind", "run_id", "behavior", "fixed", "elo", "mu", "sigma", "games")
    return select(*(getattr(LadderPlayer, name) for name in names)).where(LadderPlayer.ladder_id == ladder_id)


def _newest(ladder_id: str, players: Sequence[int]) -> Select[Any]:
    """Select the newest point of each player."""
    of_them = (RatingPoint.ladder_id == ladder_id, RatingPoint.player.in_(players))
    newest = select(RatingPoint.player, func.max(RatingPoint.game)).where(*of_them).group_by(RatingPoint.player)
    return select(RatingPoint).where(*of_them, tuple_(RatingPoint.player, RatingPoint.game).in_(newest))


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
