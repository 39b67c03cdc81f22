"""Aliases over HTTP: set, compared, moved, removed; and retention, which leaves their checkpoints alone."""

import httpx2
import pytest

from server.checkpoints.retention import held
from tests.factories import save_checkpoints
from tests.server.app.world import World


@pytest.fixture(scope="module")
def saved(world: World) -> list[str]:
    """Return the ids of three checkpoints of one run, oldest first."""
    return save_checkpoints(world.services.database, 100, 200, 300)


def test_an_alias_is_made_moved_listed_and_removed(http: httpx2.Client, saved: list[str]) -> None:
    made = http.put("/v1/aliases/best-so-far", json={"checkpoint_id": saved[0]})
    moved = http.put("/v1/aliases/best-so-far", json={"checkpoint_id": saved[1]})
    listed = http.get("/v1/aliases", params={"filter": "name = best-so-far"}).json()["aliases"]
    gone = http.delete("/v1/aliases/best-so-far")

    assert (made.status_code, made.json()["version"]) == (200, 1)
    assert (moved.json()["checkpoint_id"], moved.json()["version"]) == (saved[1], 2)
    assert listed == [moved.json()]
    assert gone.status_code == 204
    assert http.get("/v1/aliases/best-so-far").json()["code"] == "alias_not_found"


def test_an_alias_that_somebody_has_moved_stays_where_it_is(http: httpx2.Client, saved: list[str]) -> None:
    http.put("/v1/aliases/compared", json={"checkpoint_id": saved[0]})
    http.put("/v1/aliases/compared", json={"checkpoint_id": saved[1], "expected": saved[0]})

    late = http.put("/v1/aliases/compared", json={"checkpoint_id": saved[2], "expected": saved[0]})

    assert (late.status_code, late.json()["code"]) == (409, "alias_moved")
    assert saved[1] in late.json()["detail"]
    assert http.get("/v1/aliases/compared").json()["checkpoint_id"] == saved[1]


def test_setting_an_alias_to_what_it_is_changes_nothing_whatever_was_expected(
    http: httpx2.Client, saved: list[str]
) -> None:
    first = http.put("/v1/aliases/again", json={"checkpoint_id": saved[1], "expected": None}).json()

    again = http.put("/v1/aliases/again", json={"checkpoint_id": saved[1], "expected": None})

    assert (again.status_code, again.json()) == (200, first)


def test_an_alias_that_must_be_new_is_not_taken_from_anybody(http: httpx2.Client, saved: list[str]) -> None:
    http.put("/v1/aliases/taken", json={"checkpoint_id": saved[0]})

    refused = http.put("/v1/aliases/taken", json={"checkpoint_id": saved[1], "expected": None})
    missing = http.put("/v1/aliases/not-there", json={"checkpoint_id": saved[1], "expected": saved[0]})

    assert refused.json()["code"] == "alias_moved"
    assert missing.json()["code"] == "alias_moved"
    assert "stands for nothing" in missing.json()["detail"]


@pytest.mark.parametrize("name", ["latest", "best", "ckpt_champion"])
def test_names_that_mean_a_checkpoint_anyway_are_refused(http: httpx2.Client, saved: list[str], name: str) -> None:
    refused = http.put(f"/v1/aliases/{name}", json={"checkpoint_id": saved[0]})

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_alias")


def test_an_alias_needs_a_checkpoint_that_is_there(http: httpx2.Client) -> None:
    refused = http.put("/v1/aliases/nothing", json={"checkpoint_id": "ckpt_nobody"})

    assert (refused.status_code, refused.json()["code"]) == (404, "checkpoint_not_found")


def test_retention_keeps_what_has_an_alias(world: World, http: httpx2.Client, saved: list[str]) -> None:
    http.put("/v1/aliases/kept", json={"checkpoint_id": saved[0]})
    for name in ("compared", "again", "taken"):
        http.delete(f"/v1/aliases/{name}")

    with world.services.database.read() as session:
        with_alias = held(session, saved)
    http.delete("/v1/aliases/kept")
    with world.services.database.read() as session:
        without = held(session, saved)

    assert saved[0] in with_alias
    assert saved[0] not in without
