"""`ludus ladder`: matches, results and ratings."""

import time

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option, timeout_option
from ludus.cli.render import ago, echo, number, print_facts, print_json, print_result, print_table
from ludus.client import Client
from ludus.schemas import Ladder, Match, Payoffs, Rating

POLL_SECONDS = 0.5
"""Between two looks at how far a computation is."""

ladder_argument = click.argument("ladder_key", metavar="LADDER")


@click.group()
def ladder() -> None:
    """Show ladders: ratings, payoffs and matches of self-play runs and of registered players.

    LADDER is a ladder's id or name; or a run's, for the one that it plays on.
    """


@ladder.command("list")
@click.option("--filter", "filter_", default="", help="As in 'name = \"league*\" AND matches >= 100'.")
@json_option
@connected
def list_(client: Client, *, filter_: str, as_json: bool) -> None:
    """List ladders, newest first."""
    found = list(client.ladders.list(filter_))
    if as_json:
        print_json(found)
        return
    rows = [(each.id, each.name, number(each.players), number(each.matches), ago(each.created_at)) for each in found]
    print_table(["id", "name", "players", "matches", "created"], rows)


@ladder.command()
@click.argument("name")
@click.option("--description", default="", help="A sentence for people.")
@click.option("--initial-elo", type=float, help="Initial Elo of players without one of their own. [1200]")
@json_option
@connected
def create(client: Client, *, name: str, description: str, initial_elo: float | None, as_json: bool) -> None:
    """Make a ladder that runs can share: they name it in `self_play.ladder`. Prints its id."""
    made = client.ladders.create(name, description=description, initial_elo=initial_elo)
    print_result(made, made.id, as_json=as_json)


@ladder.command()
@ladder_argument
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of players.")
@click.option("--order-by", default="", help="elo, ordinal, mu, games or id; then asc or desc. [elo desc]")
@json_option
@connected
def show(client: Client, *, ladder_key: str, limit: int, order_by: str, as_json: bool) -> None:
    """Show LADDER and its strongest players.

    `mu` and `sigma` are the mean and the deviation of what is believed of a player's strength; `ordinal`, mu - 3 sigma,
    is what it very probably exceeds. Ratings of players marked `=` are fixed.
    """
    found = client.ladders.get(ladder_key)
    ratings = list(client.ladders.list_ratings(found.id, order_by=order_by, limit=limit))
    if as_json:
        print_json({"ladder": found, "ratings": ratings})
        return
    print_facts(
        [
            ("id", found.id),
            ("name", found.name),
            ("description", found.description),
            ("players", number(found.players)),
            ("matches", number(found.matches)),
            ("not yet rated", number(found.matches - found.rated_through) if _behind(found) else ""),
        ]
    )
    echo()
    headers = ["id", "player", "kind", "step", "elo", "ordinal", "mu", "sigma", "games"]
    print_table(headers, [_rating(each) for each in ratings])


@ladder.command()
@ladder_argument
@click.option("--player", "players", type=click.IntRange(min=1), multiple=True, help="Only these; several times.")
@click.option(
    "--limit", type=click.IntRange(2, 500), default=20, show_default=True, help="Maximum number of players, the newest."
)
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
    found = client.ladders.payoffs(ladder_key, players, limit, met=not all_players)
    if as_json:
        print_json(found)
    elif all_players:
        print_table(["id", "player", *(str(each.id) for each in found.players)], _matrix(found))
    else:
        print_table(["id", "player", "id", "opponent", "games", "won", "drawn", "lost", "score"], _pairs(found))


@ladder.command()
@ladder_argument
@click.option("--filter", "filter_", default="", help="As in 'player = 3 AND outcome = win'.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of matches, the newest."
)
@json_option
@connected
def matches(client: Client, *, ladder_key: str, filter_: str, limit: int, as_json: bool) -> None:
    """List matches of LADDER, newest first. Superseded ones come with --filter 'superseded = true'."""
    found = list(client.ladders.list_matches(ladder_key, filter_, limit=limit))
    if as_json:
        print_json(found)
        return
    print_table(["match", "ended", "step", "outcome", "rated", "players"], [_match(each) for each in found])


@ladder.command()
@ladder_argument
@timeout_option
@json_option
@connected
def recompute(client: Client, *, ladder_key: str, timeout: float | None, as_json: bool) -> None:
    """Compute all ratings of LADDER again from its matches, and wait for the end. The results are the same."""
    found = client.ladders.recompute(ladder_key)
    matches_then = found.matches
    deadline = None if timeout is None else time.monotonic() + timeout
    while found.rated_through < matches_then:
        if deadline is not None and time.monotonic() > deadline:
            done = f"{number(found.rated_through)} of {number(matches_then)} matches are rated after {timeout:g} s"
            raise Failure(f"{done}; the controller continues", Exit.TIMED_OUT)
        time.sleep(POLL_SECONDS)
        found = client.ladders.get(found.id)
    print_result(found, f"{number(matches_then)} matches are rated", as_json=as_json)


def _behind(found: Ladder) -> bool:
    return found.rated_through < found.matches


def _rating(each: Rating) -> tuple[object, ...]:
    elo = number(each.elo) + ("=" if each.fixed else "")
    numbers = (number(each.ordinal), number(each.mu), number(each.sigma), number(each.games))
    return (each.id, each.name, each.kind, number(each.step), elo, *numbers)


def _matrix(found: Payoffs) -> list[tuple[str, ...]]:
    return [
        (str(player.id), player.name, *("-" if score is None else f"{score:.2f}" for score in scores))
        for player, scores in zip(found.players, found.scores, strict=True)
    ]


def _pairs(found: Payoffs) -> list[tuple[object, ...]]:
    """Return a row for each pair that has met, those of the newest players first."""
    rows: list[tuple[object, ...]] = []
    for b, second in reversed(list(enumerate(found.players))):
        for a, first in enumerate(found.players[:b]):
            score = found.scores[a][b]
            if score is not None:
                counts = (number(table[a][b]) for table in (found.games, found.wins, found.draws, found.losses))
                rows.append((first.id, first.name, second.id, second.name, *counts, f"{score:.2f}"))
    return rows


def _match(each: Match) -> tuple[object, ...]:
    rated = "superseded" if each.superseded_by is not None else "yes" if each.rated else "no"
    sides = " - ".join(f"{participant.name} (team {participant.team})" for participant in each.participants)
    return (each.seq, ago(each.at), number(each.step), each.outcome, rated, sides)
