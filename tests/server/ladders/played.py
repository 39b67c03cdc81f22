"""Matches as trainers report them, and where they end up."""

from typing import Any

from sqlalchemy import select

from server.kit.db.database import Database
from server.ladders.models import Ladder, LadderMatch, LadderPair, LadderPlayer, RatingPoint
from server.ladders.ratings import RatingJob
from server.ladders.refs import Outcome, PlayedMatch, PlayedParticipant
from server.ladders.repository import LadderRepository
from server.lifecycle.attempts import AttemptLedger
from tests.factories import make_claim, make_run

SELF_PLAY: dict[str, Any] = {"behaviors": {"Striker": {"trainer_type": "ppo", "self_play": {}}}, "seed": 7}


def make_match(number: int, outcome: Outcome = "win", snapshot: int | None = 0, **overrides: Any) -> PlayedMatch:
    """Describe a match of the learning Striker against a snapshot that was taken at 1000 times its number."""
    step = overrides.get("step", 100 * number)
    opponent = PlayedParticipant("Striker", 1, snapshot, step if snapshot is None else 1000 * snapshot)
    values: dict[str, Any] = {
        "number": number,
        "behavior": "Striker",
        "simulator": 0,
        "at": 1000.0 + number,
        "step": step,
        "participants": (PlayedParticipant("Striker", 0, None, step), opponent),
        "outcome": outcome,
        "truncated": False,
        "rated": True,
        "elo": 1200.0,
    }
    return PlayedMatch(**{**values, **overrides})


def make_player(database: Database, **overrides: Any) -> AttemptLedger:
    """Queue and claim a run that plays against itself; return what its attempt writes to."""
    make_run(database, **{"config": SELF_PLAY, **overrides})
    return AttemptLedger(database, make_claim(database))


def next_attempt(database: Database, ledger: AttemptLedger, **newest: int) -> AttemptLedger:
    """Let another worker take the run over, from a checkpoint that counts each behavior's matches up to these."""
    ledger.release("released", "a test wants so")
    later = AttemptLedger(database, make_claim(database))
    later.matches.resume(newest)
    return later


def rate_all(database: Database, batch: int = 2000) -> None:
    """Bring all ratings up to date."""
    rater = RatingJob(database, batch)
    while rater.rate():
        pass


def get_ladder(database: Database, key: str) -> Ladder:
    """Return a ladder as it is now."""
    with database.read() as session:
        return LadderRepository(session).get(key)


def read_matches(database: Database) -> list[LadderMatch]:
    """Return the whole ledger."""
    with database.read() as session:
        return list(session.scalars(select(LadderMatch).order_by(LadderMatch.ladder_id, LadderMatch.seq)))


def computed(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that is computed from the ledger, to the last bit."""
    player, point, pair = LadderPlayer, RatingPoint, LadderPair
    queries = {
        "ladders": select(Ladder.id, Ladder.rated_through).order_by(Ladder.id),
        "players": select(player.ladder_id, player.id, player.elo, player.mu, player.sigma, player.games).order_by(
            player.ladder_id, player.id
        ),
        "points": select(
            point.ladder_id, point.player, point.game, point.seq, point.step, point.at, point.elo, point.mu, point.sigma
        ).order_by(point.ladder_id, point.player, point.game),
        "pairs": select(pair.ladder_id, pair.first, pair.second, pair.wins, pair.draws, pair.losses).order_by(
            pair.ladder_id, pair.first, pair.second
        ),
    }
    with database.read() as session:
        return {name: [tuple(row) for row in session.execute(query)] for name, query in queries.items()}
