"""`ludus ladder` against a real server."""

import threading

import pytest
from sqlalchemy import update

from ludus.cli import exits
from ludus.client import Client
from server.kit.jobs import JobLoop
from server.ladders.ratings import RatingJob
from server.runs.models import Run
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World
from tests.server.ladders.played import make_match, rate_all


@pytest.fixture(scope="module")
def league(world: World) -> str:
    """Play three matches between three players."""
    with Client(world.server) as client:
        client.ladders.create("league", description="of the tests")
        for name in ("ann", "bob"):
            client.ladders.register_player("league", name, "human")
        client.ladders.register_player("league", "wall", "scripted", fixed=True)
        client.ladders.report_match("league", ["ann", "bob"], outcome="win")
        client.ladders.report_match("league", ["ann", "bob"], outcome="draw")
        client.ladders.report_match("league", ["wall", "bob"], outcome="loss")
    rate_all(world.services.database)
    return "league"


def test_ladders_are_made_and_listed(cli: Invoke, league: str) -> None:
    made = cli("ladder", "create", "cup", "--initial-elo", "1000").stdout.strip()

    listed = {line.split()[1]: line.split() for line in cli("ladder", "list").stdout.splitlines()[1:]}

    assert listed["cup"][:4] == [made, "cup", "0", "0"]
    assert listed[league][2:4] == ["3", "3"]
    assert as_json(cli("ladder", "list", "--filter", "name = cup", "--json"))[0]["initial_elo"] == 1000


def test_a_ladder_is_shown_with_its_strongest_players(cli: Invoke, league: str) -> None:
    lines = cli("ladder", "show", league).stdout.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    table = [line.split() for line in lines[lines.index("") + 1 :]]

    assert (facts["name"], facts["description"], facts["matches"]) == (league, "of the tests", "3")
    assert table[0] == ["ID", "PLAYER", "KIND", "STEP", "ELO", "ORDINAL", "MU", "SIGMA", "GAMES"]
    # ann won and drew against bob, who then won against wall, which is fixed
    assert [(row[1], row[-1]) for row in table[1:]] == [("ann", "2"), ("bob", "3"), ("wall", "1")]
    assert next(row for row in table if row[1] == "wall")[4] == "1,200="
    only = as_json(cli("ladder", "show", league, "--limit", "1", "--order-by", "games desc", "--json"))
    assert [each["name"] for each in only["ratings"]] == ["bob"]


def test_payoffs_are_a_matrix_of_mean_scores(cli: Invoke, league: str) -> None:
    table = [line.split() for line in cli("ladder", "payoffs", league, "--all").stdout.splitlines()]

    assert table == [
        ["ID", "PLAYER", "1", "2", "3"],
        ["1", "ann", "-", "0.75", "-"],
        ["2", "bob", "0.25", "-", "1.00"],
        ["3", "wall", "-", "0.00", "-"],
    ]
    assert as_json(cli("ladder", "payoffs", league, "--player", "1", "--player", "2", "--json"))["games"] == [
        [0, 2],
        [2, 0],
    ]


def test_payoffs_have_a_row_for_each_pair_that_has_met(cli: Invoke, league: str) -> None:
    table = [line.split() for line in cli("ladder", "payoffs", league).stdout.splitlines()]

    assert table == [
        ["ID", "PLAYER", "ID", "OPPONENT", "GAMES", "WON", "DRAWN", "LOST", "SCORE"],
        ["2", "bob", "3", "wall", "1", "1", "0", "0", "1.00"],
        ["1", "ann", "2", "bob", "2", "1", "1", "0", "0.75"],
    ]


def test_the_newest_snapshots_are_shown_beside_the_policy_that_they_met(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create({"behaviors": {"Striker": {"self_play": {}}}}, name="star")["id"]).start()
    trainer.ledger.matches.append([make_match(number, snapshot=number) for number in range(1, 9)])
    rate_all(world.services.database)

    pairs = [line.split() for line in cli("ladder", "payoffs", "star", "--limit", "4").stdout.splitlines()[1:]]
    all_players = [
        line.split() for line in cli("ladder", "payoffs", "star", "--limit", "4", "--all").stdout.splitlines()
    ]

    assert [(row[1], row[3]) for row in pairs] == [("star/Striker", f"star/Striker#{number}") for number in (8, 7, 6)]
    assert [row[1:] for row in all_players[1:]] == [[f"star/Striker#{number}", *"----"] for number in (5, 6, 7, 8)]


def test_a_renamed_runs_players_and_ladder_are_called_by_its_present_name(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create({"behaviors": {"Striker": {"self_play": {}}}}, name="before")["id"]).start()
    trainer.ledger.matches.append([make_match(1, snapshot=0)])
    rate_all(world.services.database)
    with world.services.database.write() as session:
        session.execute(update(Run).where(Run.id == trainer.run_id).values(name="after"))

    shown = cli("ladder", "show", "after").stdout
    listed = [line.split()[1] for line in cli("ladder", "list").stdout.splitlines()[1:]]
    matches = cli("ladder", "matches", "after").stdout

    assert "after/Striker#0" in shown
    assert "after" in listed
    assert matches.splitlines()[1].endswith("after/Striker (team 0) - after/Striker#0 (team 1)")
    for text in (shown, matches):
        assert trainer.run_id not in text
    found = as_json(cli("ladder", "list", "--filter", "name = after", "--json"))
    assert [each["run_id"] for each in found] == [trainer.run_id]


def test_matches_are_listed_newest_first(cli: Invoke, league: str) -> None:
    lines = cli("ladder", "matches", league, "--filter", "player = 1").stdout.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["2", "1"]
    assert lines[1].endswith("ann (team 0) - bob (team 1)")
    assert [each["seq"] for each in as_json(cli("ladder", "matches", league, "--limit", "1", "--json"))] == [3]


def test_recomputing_waits_until_all_is_rated_again(cli: Invoke, world: World, league: str) -> None:
    before = as_json(cli("ladder", "show", league, "--json"))
    stop = threading.Event()
    rating = threading.Thread(target=JobLoop([RatingJob(world.services.database).job()], 0.05).run, args=(stop,))
    rating.start()
    try:
        result = cli("ladder", "recompute", league, "--timeout", "30s")
    finally:
        stop.set()
        rating.join()

    assert (result.exit_code, result.stdout.strip()) == (0, "3 matches are rated")
    assert as_json(cli("ladder", "show", league, "--json")) == before


def test_recomputing_gives_up_at_its_time_out(cli: Invoke, world: World, league: str) -> None:
    late = cli("ladder", "recompute", league, "--timeout", "0.1s")
    rate_all(world.services.database)

    assert late.exit_code == exits.Exit.TIMED_OUT
    assert "0 of 3 matches are rated" in late.stderr


def test_an_unknown_ladder_is_a_sentence_and_an_exit_code(cli: Invoke) -> None:
    result = cli("ladder", "show", "nowhere")

    assert (result.exit_code, "There is no ladder 'nowhere'" in result.stderr) == (exits.Exit.REFUSED, True)
