"""The collectors of a run's live attempt, over HTTP and through the client."""

import time

from ludus.client import Client
from ludus.schemas.states import RunState
from server.runs.refs import EdgeCollectorRef
from tests.server.app.world import World

EDGE = EdgeCollectorRef(1, "desk-7", "ipv4:10.0.0.7:4711", 1_700_000_000.5)


def test_the_collectors_of_the_live_attempt_are_listed_with_what_they_serve(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    lagging = EdgeCollectorRef(2, "slow", "ipv4:10.0.0.8:4711", time.time(), time.time(), 64 << 20)
    trainer.ledger.collectors.publish([EDGE, lagging])
    for number, collector in enumerate([0, 1, 1]):
        trainer.ledger.simulators.connected(f"sim-{number}", number=number, collector=collector)
    trainer.ledger.simulators.left("sim-2", code="left", reason="it is done", steps=1)

    with Client(world.server) as client:
        local, edge, slow = client.runs.collectors(trainer.run_id)

    assert (local.kind, local.index, local.address, local.simulators) == ("local", 0, "127.0.0.1:4000", 1)
    assert (edge.kind, edge.index, edge.host, edge.address, edge.simulators) == ("edge", 1, "desk-7", EDGE.address, 1)
    assert edge.joined_at is not None
    assert edge.joined_at.timestamp() == EDGE.joined_at
    assert (edge.lagged_at, slow.lagged_at is None, slow.waiting_bytes) == (None, False, 64 << 20)


def test_an_attempt_that_is_over_has_no_collectors(world: World) -> None:
    run = world.create()["id"]
    url = f"/v1/runs/{run}/collectors"
    before = world.http.get(url).json()
    trainer = world.claim(run).start()
    trainer.ledger.collectors.publish([EDGE])
    during = world.http.get(url).json()
    trainer.finish(RunState.SUCCEEDED)

    assert before == world.http.get(url).json() == {"collectors": [], "next_page_token": before["next_page_token"]}
    assert [each["kind"] for each in during["collectors"]] == ["local", "edge"]


def test_where_edge_collectors_connect_is_not_called_a_place_for_simulators(world: World) -> None:
    trainer = world.claim(world.create()["id"])

    trainer.ledger.listening(
        [{"address": "host:1", "index": 0, "edge": False}, {"address": "host:2", "index": -1, "edge": True}]
    )

    events = world.http.get(f"/v1/runs/{trainer.run_id}/events").json()["events"]
    (said,) = [event["message"] for event in events if event["type"] == "trainer_listening"]
    assert said == "Simulators can connect: host:1. Edge collectors can connect: host:2."
