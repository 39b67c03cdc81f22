"""Ladders over HTTP: players, matches, ratings, payoffs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy.typing as npt
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field as Within

from ludus import schemas
from server.kit.db.database import Session
from server.kit.errors import CheckpointNotFound, NameAmbiguous
from server.kit.http.bodies import BodyDep
from server.kit.http.errors import deleted, problems
from server.kit.http.fields import Name
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer, json_command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, ServicesDep
from server.kit.listing import ListQuery, Page
from server.ladders.matches import MatchRepository
from server.ladders.models import Ladder, LadderMatch, LadderPlayer, RatingPoint
from server.ladders.ratings import RatingRepository
from server.ladders.refs import (
    LadderExists,
    LadderInUse,
    LadderNotFound,
    MatchInvalid,
    PlayerExists,
    PlayerKind,
    PlayerNotFound,
)
from server.ladders.repository import LadderRepository, PlayerRepository
from server.ladders.requests import LadderCreate, MatchReport, PlayerCreate
from server.ladders.service import LadderService

router = APIRouter(prefix="/v1/ladders", tags=["ladders"])

LADDERS = ListForm(
    "ladders",
    schemas.Ladder,
    LadderRepository.COLUMNS,
    orders=("created_at", "name"),
)
PLAYERS = ListForm(
    "players",
    schemas.Player,
    PlayerRepository.COLUMNS,
    orders=("id", "name"),
    ascending=True,
    choices={"kind": PlayerKind},
)
RATINGS = replace(
    PLAYERS,
    name="ratings",
    kind=schemas.Rating,
    orders=("elo", "mu", "ordinal", "games", "id"),
    ascending=False,
)
MATCHES = ListForm(
    "matches",
    schemas.Match,
    MatchRepository.COLUMNS,
    orders=("seq",),
    equality={"player", "outcome", "run_id"},
)
MAX_POINTS = 2000
MAX_SERIES = 50
MAX_PAYOFFS = 500

LadderKey = Annotated[
    Name,
    Path(description="A ladder's id or name; or a run's, for the one it plays on."),
]
Number = Annotated[int, Within(ge=1, le=2**31 - 1)]


@router.get("", response_model=LADDERS.page(), responses=problems(*LIST_PROBLEMS))
def list_ladders(listing: ListingDep) -> dict[str, object]:
    """List ladders, newest first."""
    return listing.answer(LADDERS, lambda session, query: LadderRepository(session).list(query).map(_ladder))


@router.post("", status_code=201, response_model=schemas.Ladder, **json_command(LadderCreate, LadderExists))
def create_ladder(body: BodyDep, command: CommandDep) -> Response:
    """Create a ladder that runs can share. A run without one has its own."""
    new = body.read(LadderCreate, {})

    def create(session: Session) -> Answer:
        row = LadderService(session).create(new.name, new.description, new.initial_elo)
        return Answer(201, _ladder(row), f"/v1/ladders/{row.id}")

    return command.run(create)


@router.get("/{ladder:name}", responses=problems(LadderNotFound, NameAmbiguous))
def get_ladder(ladder: LadderKey, database: DatabaseDep) -> schemas.Ladder:
    """Return one ladder."""
    with database.read() as session:
        return _ladder(LadderRepository(session).get(ladder))


@router.delete("/{ladder:name}", status_code=204, responses=deleted(LadderNotFound, NameAmbiguous, LadderInUse))
def delete_ladder(ladder: LadderKey, services: ServicesDep) -> None:
    """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
    with services.database.write() as session:
        LadderService(session).delete(ladder)


@router.post(
    "/{ladder:name}:recompute",
    response_model=schemas.Ladder,
    responses=problems(LadderNotFound, NameAmbiguous, *COMMAND_PROBLEMS),
)
def recompute_ladder(ladder: LadderKey, command: CommandDep) -> Response:
    """Take all ratings and payoffs back, and compute them again from the matches; they come out the same.

    The controller does so piece by piece: `rated_through` says how far it is.
    """
    return command.run(lambda session: Answer(200, _ladder(LadderService(session).recompute(ladder))))


@router.get(
    "/{ladder:name}/players",
    response_model=PLAYERS.page(),
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_players(ladder: LadderKey, listing: ListingDep) -> dict[str, object]:
    """List a ladder's players, in the order in which they came."""
    return listing.answer(
        PLAYERS,
        lambda session, query: PlayerRepository(session).list(LadderRepository(session).get(ladder).id, query),
    )


@router.post(
    "/{ladder:name}/players",
    status_code=201,
    response_model=schemas.Player,
    **json_command(PlayerCreate, LadderNotFound, NameAmbiguous, CheckpointNotFound, PlayerExists),
)
def register_player(ladder: LadderKey, body: BodyDep, command: CommandDep) -> Response:
    """Register a script, a person or a checkpoint, whose matches are reported. Policies of runs join by themselves."""
    new = body.read(PlayerCreate, {})
    return command.run(
        lambda session: Answer(201, resource(schemas.Player, LadderService(session).add_player(ladder, new)))
    )


@router.get(
    "/{ladder:name}/ratings",
    response_model=RATINGS.page(
        matches=(int, Within(description="Number of the ladder's newest match.")),
        rated_through=(int, Within(description="All matches up to this number are in the ratings.")),
    ),
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_ratings(ladder: LadderKey, listing: ListingDep) -> dict[str, object]:
    """List how strong the players are, the highest Elo first."""
    state = dict[str, int]()

    def fetch(session: Session, query: ListQuery) -> Page[LadderPlayer]:
        row = LadderRepository(session).get(ladder)
        state.update(matches=row.match_seq, rated_through=row.rated_through)
        return PlayerRepository(session).list(row.id, query)

    return listing.answer(RATINGS, fetch) | state


@router.get(
    "/{ladder:name}/ratings/history",
    responses=problems(LadderNotFound, NameAmbiguous, PlayerNotFound),
)
def rating_history(
    ladder: LadderKey,
    database: DatabaseDep,
    players: Annotated[
        list[Number] | None,
        Query(max_length=MAX_SERIES, description="Players' numbers. Not given, they are the newest learning policies."),
    ] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Maximum number of entries per player.")] = 500,
) -> schemas.RatingHistory:
    """Return players' ratings over their matches, by number, step and time."""
    with database.read() as session:
        row = LadderRepository(session).get(ladder)
        repository = PlayerRepository(session)
        rows = repository.learning(row.id, MAX_SERIES) if players is None else repository.get_all(row.id, players)
        ratings = RatingRepository(session)
        series = tuple(_series(player, ratings.history(player, points)) for player in rows)
    return schemas.RatingHistory(rated_through=row.rated_through, series=series)


@router.get(
    "/{ladder:name}/payoffs",
    responses=problems(LadderNotFound, NameAmbiguous, PlayerNotFound),
)
def get_payoffs(
    ladder: LadderKey,
    database: DatabaseDep,
    players: Annotated[
        list[Number] | None,
        Query(
            max_length=MAX_PAYOFFS,
            description="Players' numbers. Not given, they are the newest ones that have met one another.",
        ),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAYOFFS, description="Maximum number of players, if none are named.")
    ] = 200,
    met: Annotated[
        bool,
        Query(
            description="Only players that have met another player of the answer. False: the newest `limit` players "
            "with a match. Named players are always in the answer."
        ),
    ] = True,
) -> schemas.Payoffs:
    """Return the results of each player against each other one."""
    with database.read() as session:
        row = LadderRepository(session).get(ladder)
        repository, ratings = PlayerRepository(session), RatingRepository(session)
        if players is None and not met:
            rows = repository.played(row.id, limit)
        else:
            rows = repository.get_all(row.id, ratings.met(row.id, limit) if players is None else players)
        payoffs = ratings.payoffs(row.id, rows)
    return schemas.Payoffs(
        rated_through=row.rated_through,
        players=tuple(resource(schemas.PayoffPlayer, player) for player in payoffs.players),
        wins=_rows(payoffs.wins),
        draws=_rows(payoffs.draws),
        losses=_rows(payoffs.losses),
        games=_rows(payoffs.games),
        scores=_rows(payoffs.scores),  # NaN, of players that never met, becomes null
    )


@router.get(
    "/{ladder:name}/matches",
    response_model=MATCHES.page(),
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_matches(ladder: LadderKey, listing: ListingDep) -> dict[str, object]:
    """List a ladder's matches, newest first: `player = 3 AND outcome = win`. Superseded ones only on request."""
    return listing.answer(
        MATCHES,
        lambda session, query: (
            MatchRepository(session).list(LadderRepository(session).get(ladder).id, query).map(_match)
        ),
    )


@router.post(
    "/{ladder:name}/matches",
    status_code=201,
    response_model=schemas.Match,
    **json_command(MatchReport, LadderNotFound, NameAmbiguous, PlayerNotFound, MatchInvalid),
)
def report_match(ladder: LadderKey, body: BodyDep, command: CommandDep) -> Response:
    """Store a match that was played elsewhere: for instance a person's against a policy."""
    report = body.read(MatchReport, {})
    return command.run(lambda session: Answer(201, _match(LadderService(session).report(ladder, report))))


def _ladder(row: Ladder) -> schemas.Ladder:
    return resource(schemas.Ladder, row, players=row.player_seq, matches=row.match_seq)


def _series(player: LadderPlayer, points: Sequence[RatingPoint]) -> schemas.RatingSeries:
    return resource(
        schemas.RatingSeries,
        player,
        total=player.games,
        games=[point.game for point in points],
        matches=[point.seq for point in points],
        steps=[point.step for point in points],
        times=[point.at for point in points],
        elo=[point.elo for point in points],
        mu=[point.mu for point in points],
        sigma=[point.sigma for point in points],
    )


def _rows(matrix: npt.NDArray[Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _match(row: LadderMatch) -> schemas.Match:
    return resource(
        schemas.Match,
        row,
        participants=[resource(schemas.Participant, participant) for participant in row.participants],
    )
