"""`ludus ladder`: matches, results and ratings."""

from collections.abc import Iterator
from functools import partial

import click

from ludus.cli.client import Failure, answering, connected
from ludus.cli.exits import Exit
from ludus.cli.options import filter_option, json_option, limit_option, option, timeout_option
from ludus.cli.render import echo, fields, id_of, number, print_answer, print_facts, print_table, table
from ludus.client import Client
from ludus.client.backoff import ServerBackoff
from ludus.json_values import JsonObject
from ludus.schemas import Ladder, Match, Payoffs

POLL_SECONDS = 0.5
"""Pause between two requests for the progress of a computation."""

ladder_argument = click.argument("ladder_key", metavar="LADDER")


@click.group()
def ladder() -> None:
    """Show ladders: ratings, payoffs and matches of self-play runs and of registered players.

    LADDER is a ladder's id or name; or a run's, for the one that it plays on.
    """


@ladder.command("list")
@filter_option("'name = \"league*\" AND matches >= 100'")
@answering(table("id, name, players, matches, created_at"))
def list_(client: Client, *, filter_: str) -> Iterator[Ladder]:
    """List ladders, newest first."""
    return client.ladders.list(filter_)


@ladder.command()
@click.argument("name")
@click.option("--description", default="", help="A sentence for people.")
@click.option("--initial-elo", type=float, help="Initial Elo of players without one of their own. [1200]")
@answering(id_of)
def create(client: Client, *, name: str, description: str, initial_elo: float | None) -> Ladder:
    """Make a ladder that runs can share: they name it in `self_play.ladder`. Prints its id."""
    return client.ladders.create(name, description=description, initial_elo=initial_elo)


def _show(answer: JsonObject) -> None:
    ladder: Ladder = answer["ladder"]
    unrated = ladder.matches - ladder.rated_through
    facts = fields(ladder, "id, name, description, players, matches")
    print_facts([*facts, ("not yet rated", number(unrated) if unrated > 0 else "")])
    echo()
    table(
        "id, player=name, kind, step, elo, ordinal, mu, sigma, games",
        elo=lambda rating: number(rating.elo) + ("=" if rating.fixed else ""),
    )(answer["ratings"])


@ladder.command()
@ladder_argument
@limit_option("players")
@click.option("--order-by", default="", help="elo, ordinal, mu, games or id; then asc or desc. [elo desc]")
@answering(_show)
def show(client: Client, *, ladder_key: str, limit: int, order_by: str) -> JsonObject:
    """Show LADDER and its strongest players.

    `mu` and `sigma` are the mean and the deviation of the estimate of a player's strength; `ordinal`, mu - 3 sigma, is
    a value that the strength very probably exceeds. Ratings of players marked `=` are fixed.
    """
    record = client.ladders.get(ladder_key)
    return {"ladder": record, "ratings": list(client.ladders.list_ratings(record.id, order_by=order_by, limit=limit))}


def _matrix(results: Payoffs) -> None:
    rows = [
        (str(player.id), player.name, *("-" if score is None else f"{score:.2f}" for score in scores))
        for player, scores in zip(results.players, results.scores, strict=True)
    ]
    print_table(["id", "player", *(str(player.id) for player in results.players)], rows)


def _pairs(results: Payoffs) -> None:
    """Print a row for each pair that has met, those of the newest players first."""
    rows: list[tuple[object, ...]] = []
    for b, second in reversed(list(enumerate(results.players))):
        for a, first in enumerate(results.players[:b]):
            score = results.scores[a][b]
            if score is not None:
                counts = (
                    number(counted[a][b]) for counted in (results.games, results.wins, results.draws, results.losses)
                )
                rows.append((first.id, first.name, second.id, second.name, *counts, f"{score:.2f}"))
    print_table(["id", "player", "id", "opponent", "games", "won", "drawn", "lost", "score"], rows)


@ladder.command()
@ladder_argument
@click.option("--player", "players", type=click.IntRange(min=1), multiple=True, help="Only these; several times.")
@option("--limit", type=click.IntRange(2, 500), default=20, help="Maximum number of players, the newest.")
@click.option(
    "--all",
    "all_players",
    is_flag=True,
    help="A matrix of mean scores of all players, including pairs without a match.",
)
@json_option
@connected
def payoffs(
    client: Client, *, ladder_key: str, players: tuple[int, ...], limit: int, all_players: bool, as_json: bool
) -> None:
    """Show the scores of players of LADDER against each other; a draw is half a win.

    Each pair that has met has a row, from the side of its first player. With --all there is a matrix: the mean score of
    each player (row) against each other one (column).
    """
    results = client.ladders.payoffs(ladder_key, players, limit, met=not all_players)
    print_answer(results, _matrix if all_players else _pairs, as_json=as_json)


def _rated(each: Match) -> str:
    return "superseded" if each.superseded_by is not None else "yes" if each.rated else "no"


def _players(each: Match) -> str:
    return " - ".join(f"{participant.name} (team {participant.team})" for participant in each.participants)


@ladder.command()
@ladder_argument
@filter_option("'player = 3 AND outcome = win'")
@limit_option("matches, the newest")
@answering(table("match=seq, ended=at, step, outcome, rated, players", rated=_rated, players=_players))
def matches(client: Client, *, ladder_key: str, filter_: str, limit: int) -> Iterator[Match]:
    """List matches of LADDER, newest first. Superseded ones come with --filter 'superseded = true'."""
    return client.ladders.list_matches(ladder_key, filter_, limit=limit)


@ladder.command()
@ladder_argument
@timeout_option
@json_option
@connected
def recompute(client: Client, *, ladder_key: str, timeout: float | None, as_json: bool) -> None:
    """Compute all ratings of LADDER again from its matches, and wait for the end. The results are the same."""
    record = client.ladders.recompute(ladder_key)
    matches_then = record.matches
    backoff = ServerBackoff(timeout)
    while record.rated_through < matches_then:
        if timeout is not None and backoff.over:
            done = f"{number(record.rated_through)} of {number(matches_then)} matches are rated after {timeout:g} s"
            raise Failure(f"{done} (--timeout); the controller continues", Exit.TIMED_OUT)
        backoff.sleep(POLL_SECONDS)
        record = backoff.persist(partial(client.ladders.get, record.id))
    print_answer(record, lambda _: f"{number(matches_then)} matches are rated", as_json=as_json)
