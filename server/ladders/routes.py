"""Ladders: who played whom, how it ended, and how strong that makes everybody."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field as Within

from server.app.services import CommandDep, DatabaseDep, ServicesDep
from server.kit.db.database import Session
from server.kit.errors import (
    CheckpointNotFound,
    LadderExists,
    LadderInUse,
    LadderNotFound,
    MatchInvalid,
    NameAmbiguous,
    PlayerExists,
    PlayerNotFound,
)
from server.kit.http import filters
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import NAME
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Operator, Order
from server.ladders.matches.repository import MatchRepository, SeatedMatch
from server.ladders.ratings.repository import History, Payoffs, RatingRepository
from server.ladders.refs import PlayerKind, ReportedMatch, ReportedSeat
from server.ladders.repository import LadderRepository, PlayerRepository
from server.ladders.schemas import (
    LadderCreate,
    LadderPage,
    LadderRead,
    MatchPage,
    MatchRead,
    MatchReport,
    PayoffPlayer,
    PayoffRead,
    PlayerCreate,
    PlayerPage,
    PlayerRead,
    RatingHistory,
    RatingPage,
    RatingRead,
    RatingSeries,
    SeatRead,
)
from server.ladders.service import LadderService, NewPlayer

router = APIRouter(prefix="/v1/ladders", tags=["ladders"])

LADDERS = ListForm(
    name="ladders",
    filters={
        "name": Field(filters.word),
        "run_id": Field(filters.word),
        "players": Field(filters.integer),
        "matches": Field(filters.integer),
        "created_at": Field(filters.time),
    },
    orders=frozenset({"created_at", "name"}),
    default=Order("created_at"),
)
_OF_PLAYERS = {
    "id": Field(filters.integer),
    "name": Field(filters.word),
    "kind": Field(filters.choice(PlayerKind), EQUALITY),
    "run_id": Field(filters.word),
    "behavior": Field(filters.word),
    "snapshot": Field(filters.integer),
    "step": Field(filters.integer),
    "fixed": Field(filters.flag, EQUALITY),
    "games": Field(filters.integer),
}
PLAYERS = ListForm("players", _OF_PLAYERS, frozenset({"id", "name"}), Order("id", descending=False))
RATINGS = ListForm("ratings", _OF_PLAYERS, frozenset({"elo", "mu", "ordinal", "games", "id"}), Order("elo"))
MATCHES = ListForm(
    name="matches",
    filters={
        "seq": Field(filters.integer),
        "at": Field(filters.time),
        "player": Field(filters.integer, frozenset({Operator.EQ})),
        "outcome": Field(filters.word, EQUALITY),
        "rated": Field(filters.flag, EQUALITY),
        "truncated": Field(filters.flag, EQUALITY),
        "superseded": Field(filters.flag, EQUALITY),
        "run_id": Field(filters.word, EQUALITY),
        "epoch": Field(filters.integer),
        "behavior": Field(filters.word),
        "number": Field(filters.integer),
        "simulator": Field(filters.integer),
        "step": Field(filters.integer),
    },
    orders=frozenset({"seq"}),
    default=Order("seq"),
)
MAX_POINTS = 2000
MAX_SERIES = 50
MAX_PAYOFFS = 500

LadderKey = Annotated[
    str,
    Path(max_length=200, pattern=NAME, description="A ladder's id or name; or a run's, for the one it plays on."),
]
Number = Annotated[int, Within(ge=1, le=2**31 - 1)]


@router.get("", response_model=LadderPage, responses=problems(*LIST_PROBLEMS))
def list_ladders(listing: ListingDep, database: DatabaseDep) -> LadderPage:
    """List ladders, newest first."""
    query = listing.query(LADDERS)
    with database.read() as session:
        page = LadderRepository(session).list(query)
        found = [LadderRead.model_validate(each) for each in page.items]
    return LadderPage(ladders=found, next_page_token=listing.token(LADDERS, page))


@router.post(
    "",
    status_code=201,
    response_model=LadderRead,
    responses=problems(LadderExists, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(LadderCreate),
)
def create_ladder(body: BodyDep, command: CommandDep) -> Response:
    """Make a ladder that runs can share. A run without one has its own."""
    wanted = body.read(LadderCreate, {})

    def create(session: Session) -> Answer:
        made = LadderService(session).create(wanted.name, wanted.description, wanted.initial_elo)
        return Answer(201, LadderRead.model_validate(made), f"/v1/ladders/{made.id}")

    return command.run(create)


@router.get("/{ladder:name}", response_model=LadderRead, responses=problems(LadderNotFound, NameAmbiguous))
def get_ladder(ladder: LadderKey, database: DatabaseDep) -> LadderRead:
    """Return one ladder."""
    with database.read() as session:
        return LadderRead.model_validate(LadderRepository(session).get(ladder))


@router.delete(
    "/{ladder:name}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It is gone."}, **problems(LadderNotFound, NameAmbiguous, LadderInUse)},
)
def delete_ladder(ladder: LadderKey, services: ServicesDep) -> Response:
    """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
    with services.database.write() as session:
        LadderService(session).delete(ladder)
    return Response(status_code=204)


@router.post(
    "/{ladder:name}:recompute",
    response_model=LadderRead,
    responses=problems(LadderNotFound, NameAmbiguous, *COMMAND_PROBLEMS),
)
def recompute_ladder(ladder: LadderKey, command: CommandDep) -> Response:
    """Take all ratings and payoffs back, and compute them anew from the matches; they come out the same.

    The steward does so piece by piece: `rated_through` says how far it is.
    """
    return command.run(lambda session: Answer(200, LadderRead.model_validate(LadderService(session).recompute(ladder))))


@router.get(
    "/{ladder:name}/players",
    response_model=PlayerPage,
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_players(ladder: LadderKey, listing: ListingDep, database: DatabaseDep) -> PlayerPage:
    """List a ladder's players, in the order in which they came."""
    query = listing.query(PLAYERS)
    with database.read() as session:
        page = PlayerRepository(session).list(LadderRepository(session).get(ladder).id, query)
        found = [PlayerRead.model_validate(each) for each in page.items]
    return PlayerPage(players=found, next_page_token=listing.token(PLAYERS, page))


@router.post(
    "/{ladder:name}/players",
    status_code=201,
    response_model=PlayerRead,
    responses=problems(
        LadderNotFound,
        NameAmbiguous,
        CheckpointNotFound,
        PlayerExists,
        UnsupportedMediaType,
        BodyInvalid,
        *COMMAND_PROBLEMS,
    ),
    openapi_extra=declare_json(PlayerCreate),
)
def register_player(ladder: LadderKey, body: BodyDep, command: CommandDep) -> Response:
    """Register a script, a person or a checkpoint, whose matches are reported. Policies of runs come by themselves."""
    wanted = body.read(PlayerCreate, {})
    new = NewPlayer(
        name=wanted.name,
        kind=PlayerKind(wanted.kind),
        checkpoint_id=wanted.checkpoint_id,
        behavior=wanted.behavior,
        elo=wanted.elo,
        mu=wanted.mu,
        sigma=wanted.sigma,
        fixed=wanted.fixed,
    )
    return command.run(
        lambda session: Answer(201, PlayerRead.model_validate(LadderService(session).add_player(ladder, new)))
    )


@router.get(
    "/{ladder:name}/ratings",
    response_model=RatingPage,
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_ratings(ladder: LadderKey, listing: ListingDep, database: DatabaseDep) -> RatingPage:
    """List how strong the players are, the highest Elo first."""
    query = listing.query(RATINGS)
    with database.read() as session:
        found = LadderRepository(session).get(ladder)
        page = PlayerRepository(session).list(found.id, query)
        return RatingPage(
            matches=found.match_seq,
            rated_through=found.rated_through,
            ratings=[RatingRead.model_validate(each) for each in page.items],
            next_page_token=listing.token(RATINGS, page),
        )


@router.get(
    "/{ladder:name}/ratings/history",
    response_model=RatingHistory,
    responses=problems(LadderNotFound, NameAmbiguous, PlayerNotFound),
)
def rating_history(
    ladder: LadderKey,
    database: DatabaseDep,
    player: Annotated[
        list[Number] | None,
        Query(max_length=MAX_SERIES, description="Players' numbers. Not given, they are the newest learning policies."),
    ] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Most entries per player.")] = 500,
) -> RatingHistory:
    """Return players' ratings over their matches, by number, step and time."""
    with database.read() as session:
        found = LadderRepository(session).get(ladder)
        players = PlayerRepository(session)
        wanted = players.learning(found.id, MAX_SERIES) if player is None else players.get_all(found.id, player)
        histories = [RatingRepository(session).history(each, points) for each in wanted]
    return RatingHistory(rated_through=found.rated_through, series=[_series(each) for each in histories])


@router.get(
    "/{ladder:name}/payoffs",
    response_model=PayoffRead,
    responses=problems(LadderNotFound, NameAmbiguous, PlayerNotFound),
)
def get_payoffs(
    ladder: LadderKey,
    database: DatabaseDep,
    player: Annotated[
        list[Number] | None,
        Query(
            max_length=MAX_PAYOFFS,
            description="Players' numbers. Not given, they are the newest ones that have met one another.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAYOFFS, description="Most players, where none are named.")] = 200,
    met: Annotated[
        bool,
        Query(
            description="Only players of whom each has met another one that is shown. False: the newest `limit` that "
            "have played, whomever they met. Players that are named are shown in either case."
        ),
    ] = True,
) -> Response:
    """Return how each player did against each other one."""
    with database.read() as session:
        found = LadderRepository(session).get(ladder)
        players, ratings = PlayerRepository(session), RatingRepository(session)
        if player is None and not met:
            wanted = players.played(found.id, limit)
        else:
            wanted = players.get_all(found.id, ratings.met(found.id, limit) if player is None else player)
        payoffs = ratings.payoffs(found.id, wanted)
    return Response(_matrix(found.rated_through, payoffs).model_dump_json(), media_type="application/json")


@router.get(
    "/{ladder:name}/matches",
    response_model=MatchPage,
    responses=problems(LadderNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_matches(ladder: LadderKey, listing: ListingDep, database: DatabaseDep) -> MatchPage:
    """List a ladder's matches, newest first: `player = 3 AND outcome = win`. Superseded ones only if asked for."""
    query = listing.query(MATCHES)
    with database.read() as session:
        page = MatchRepository(session).list(LadderRepository(session).get(ladder).id, query)
    found = [_match(each) for each in page.items]
    return MatchPage(matches=found, next_page_token=listing.token(MATCHES, page))


@router.post(
    "/{ladder:name}/matches",
    status_code=201,
    response_model=MatchRead,
    responses=problems(
        LadderNotFound,
        NameAmbiguous,
        PlayerNotFound,
        MatchInvalid,
        UnsupportedMediaType,
        BodyInvalid,
        *COMMAND_PROBLEMS,
    ),
    openapi_extra=declare_json(MatchReport),
)
def report_match(ladder: LadderKey, body: BodyDep, command: CommandDep) -> Response:
    """Enter a match that was played elsewhere: for instance a person's against a policy."""
    wanted = body.read(MatchReport, {})
    match = ReportedMatch(
        seats=tuple(ReportedSeat(seat.player, seat.team, seat.score) for seat in wanted.seats),
        outcome=wanted.outcome,
        at=None if wanted.at is None else wanted.at.timestamp(),
        truncated=wanted.truncated,
    )
    return command.run(lambda session: Answer(201, _match(LadderService(session).report(ladder, match))))


def _series(history: History) -> RatingSeries:
    points = history.points
    return RatingSeries(
        id=history.player.id,
        name=history.player.name,
        total=history.player.games,
        games=[point.game for point in points],
        matches=[point.seq for point in points],
        steps=[point.step for point in points],
        times=[datetime.fromtimestamp(point.at, UTC) for point in points],
        elo=[point.elo for point in points],
        mu=[point.mu for point in points],
        sigma=[point.sigma for point in points],
    )


def _matrix(rated_through: int, payoffs: Payoffs) -> PayoffRead:
    """Return the answer. Its hundreds of thousands of numbers are checked by nobody; NaN is written as null."""
    return PayoffRead.model_construct(
        rated_through=rated_through,
        players=[PayoffPlayer.model_validate(each) for each in payoffs.players],
        wins=payoffs.wins.tolist(),
        draws=payoffs.draws.tolist(),
        losses=payoffs.losses.tolist(),
        games=payoffs.games.tolist(),
        scores=payoffs.scores.tolist(),
    )


def _match(seated: SeatedMatch) -> MatchRead:
    match = seated.match
    return MatchRead(
        **{name: getattr(match, name) for name in MatchRead.model_fields if name != "seats"},
        seats=[
            SeatRead(
                player=player.id,
                name=player.name,
                team=seat.team,
                rank=seat.rank,
                score=seat.score,
                step=seat.step,
            )
            for seat, player in seated.seats
        ],
    )
