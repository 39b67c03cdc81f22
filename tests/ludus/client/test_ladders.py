"""Ladders through the typed client, against a real server."""

from datetime import UTC, datetime

from ludus.client import Client
from tests.server.app.world import World
from tests.server.ladders.played import rate_all


def test_a_league_is_played_and_read(client: Client, world: World) -> None:
    made = client.ladders.create("league", description="a test's", initial_elo=1000)
    ann, bob, wall = (
        client.ladders.register_player("league", "ann", "human"),
        client.ladders.register_player("league", "bob", "human", mu=20.0, sigma=4.0),
        client.ladders.register_player("league", "wall", "scripted", elo=1400, fixed=True),
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    first = client.ladders.report_match("league", ["ann", "bob"], outcome="win", at=noon)
    client.ladders.report_match("league", [ann.id, wall.id, bob.id], scores=[2, 5, 2], teams=[0, 7, 0], truncated=True)
    rate_all(world.services.database)

    assert client.ladders.get("league").rated_through == client.ladders.get(made.id).matches == 2
    assert [player.name for player in client.ladders.list_players("league", order_by="name desc")] == [
        "wall",
        "bob",
        "ann",
    ]
    assert (first.at, first.outcome, [participant.rank for participant in first.participants]) == (noon, "win", [1, 2])
    ratings = list(client.ladders.list_ratings("league"))
    assert [(each.name, each.games, each.fixed) for each in ratings] == [
        ("wall", 1, True),
        ("ann", 2, False),
        ("bob", 2, False),
    ]
    assert [match.seq for match in client.ladders.list_matches("league", f"player = {wall.id}")] == [2]
    (history,) = client.ladders.rating_history("league", [ann.id])
    assert (history.games, history.matches, history.elo[-1]) == ((1, 2), (1, 2), ratings[1].elo)
    payoffs = client.ladders.payoffs("league")
    assert [each.name for each in payoffs.players] == ["ann", "bob", "wall"]
    assert payoffs.scores == ((None, 0.75, 0.0), (0.25, None, 0.0), (1.0, 1.0, None))
    assert client.ladders.payoffs("league", [ann.id, bob.id]).games == ((0, 2), (2, 0))
    assert client.ladders.recompute("league").rated_through == 0
    client.ladders.delete("league")
    assert [each.name for each in client.ladders.list("name = league")] == []
