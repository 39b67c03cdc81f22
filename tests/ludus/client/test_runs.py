"""Runs through the client, against a real server."""

import threading

import pytest

from ludus.client import Client
from tests.server.app.world import CARTPOLE, World


def test_a_run_is_created_found_listed_and_stopped(client: Client) -> None:
    created = client.runs.create(CARTPOLE, name="mine", tags=["b", "a"], overrides={"seed": 5})

    assert (created.state, created.seed, created.tags) == ("QUEUED", 5, ("a", "b"))
    assert created.created_at.tzinfo is not None
    assert client.runs.get("mine") == created
    [listed] = client.runs.list(filter='name = "mine"')
    assert listed.id == created.id
    assert client.runs.stop("mine").state == "SUCCEEDED"
    assert client.runs.wait("mine", timeout=5).stop_reason == "user"


def test_a_list_fetches_pages_as_needed_and_stops_at_its_limit(client: Client, world: World) -> None:
    for _ in range(5):
        client.runs.create(CARTPOLE, tags=["paged"])

    assert len(list(client.runs.list(filter="tags = paged"))) == 5
    assert len(list(client.runs.list(filter="tags = paged", limit=3))) == 3


def test_one_text_in_place_of_several_is_refused_before_it_is_taken_for_its_letters(client: Client) -> None:
    with pytest.raises(TypeError, match=r"write \['nightly'\]"):
        client.runs.compare("nightly", ["reward"])


def test_a_wait_for_a_state_ends_there(client: Client, world: World) -> None:
    run = client.runs.create(CARTPOLE)
    threading.Timer(0.2, world.claim(run.id).start).start()

    assert client.runs.wait(run.id, ["RUNNING"], timeout=10).state == "RUNNING"
