"""Ladders through the typed client, against a real server."""

from datetime import UTC, datetime

import pytest

from ludus.client import Client, NotFound, ProblemAnswer
from tests.server.app.world import World
from tests.server.ladders.played import rate_all


def test_a_league_is_played_and_read(client: Client, world: World) -> None:
    made = client.create_ladder("league", description="a test's", initial_elo=1000)
    ann, bob, wall = (
        client.register_player("league", "ann", "human"),
        client.register_player("league", "bob", "human", mu=20.0, sigma=4.0),
        client.register_player("league", "wall", "scripted", elo=1400, fixed=True),
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    first = client.report_match("league", ["ann", "bob"], outcome="win", at=noon)
    client.report_match("league", [ann.id, wall.id, bob.id], scores=[2, 5, 2], teams=[0, 7, 0], truncated=True)
    rate_all(world.services.database)

    assert client.get_ladder("league").rated_through == client.get_ladder(made.id).matches == 2
    assert [player.name for player in client.list_players("league", order_by="name desc")] == ["wall", "bob", "ann"]
    assert (first.at, first.outcome, [seat.rank for seat in first.seats]) == (noon, "win", [1, 2])
    ratings = list(client.list_ratings("league"))
    assert [(each.name, each.games, each.fixed) for each in ratings] == [
        ("wall", 1, True),
        ("ann", 2, False),
        ("bob", 2, False),
    ]
    assert [match.seq for match in client.list_matches("league", f"player = {wall.id}")] == [2]
    (history,) = client.rating_history("league", [ann.id])
    assert (history.games, history.matches, history.elo[-1]) == ((1, 2), (1, 2), ratings[1].elo)
    payoffs = client.payoffs("league")
    assert [each.name for each in payoffs.players] == ["ann", "bob", "wall"]
    assert payoffs.scores == ((None, 0.75, 0.0), (0.25, None, 0.0), (1.0, 1.0, None))
    assert client.payoffs("league", [ann.id, bob.id]).games == ((0, 2), (2, 0))
    assert client.recompute_ladder("league").rated_through == 0
    client.delete_ladder("league")
    assert [each.name for each in client.list_ladders("name = league")] == []


def test_a_repeated_report_is_entered_once(client: Client) -> None:
    client.create_ladder("twice")
    for name in ("ann", "bob"):
        client.register_player("twice", name, "human")

    matches = [client.report_match("twice", ["ann", "bob"], outcome="draw", idempotency_key="m1") for _ in range(2)]

    assert matches[0] == matches[1]
    assert client.get_ladder("twice").matches == 1


def test_what_is_refused_has_its_code(client: Client) -> None:
    client.create_ladder("strict")

    with pytest.raises(NotFound) as nobody:
        client.report_match("strict", ["ann", "bob"], outcome="win")
    with pytest.raises(ProblemAnswer) as alone:
        client.report_match("strict", ["ann"], scores=[1.0])
    with pytest.raises(NotFound) as nowhere:
        client.payoffs("nowhere")

    assert [each.value.code for each in (nobody, alone, nowhere)] == [
        "player_not_found",
        "invalid_match",
        "ladder_not_found",
    ]
