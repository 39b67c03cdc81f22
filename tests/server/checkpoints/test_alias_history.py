"""The history of aliases: a row for each move and each deletion, in the transaction of the move."""

import threading
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import delete

from server.checkpoints.models import AliasMove, CheckpointAlias
from server.checkpoints.refs import AliasMoved, AliasNotFound
from server.checkpoints.repository import AliasRepository
from server.checkpoints.service import AliasService
from server.kit.db.database import Database
from server.kit.listing import ListQuery, Order
from server.runs.models import Run
from tests.factories import save_checkpoints
from tests.server.app.world import open_world


@pytest.fixture
def saved(database: Database) -> list[str]:
    """Return the ids of three checkpoints of one run, oldest first."""
    return save_checkpoints(database, 100, 200, 300)


def put(database: Database, name: str, checkpoint_id: str, by: str = "ann") -> CheckpointAlias:
    with database.write() as session:
        return AliasService(session, by).put(name, checkpoint_id, compare=False, expected=None)


def delete_alias(database: Database, name: str, by: str = "ann") -> None:
    with database.write() as session:
        AliasService(session, by).delete(name)


def history(database: Database, name: str) -> list[AliasMove]:
    with database.read() as session:
        return list(AliasRepository(session).history(name, ListQuery(Order("version"))).items)


def test_each_move_has_its_checkpoint_and_author_newest_first(database: Database, saved: list[str]) -> None:
    put(database, "champion", saved[0], "ann")
    moved = put(database, "champion", saved[1], "ben")
    assert moved.step == 200, "it is the step of the present checkpoint"
    delete_alias(database, "champion", "cem")

    moves = history(database, "champion")

    assert [(move.version, move.checkpoint_id, move.moved_by) for move in moves] == [
        (3, None, "cem"),
        (2, saved[1], "ben"),
        (1, saved[0], "ann"),
    ]
    assert (moved.version, moved.moved_by, moved.moved_at) == (2, "ben", moves[1].moved_at)
    assert moves[2].moved_at <= moves[1].moved_at <= moves[0].moved_at


def test_an_alias_that_is_set_again_goes_on_with_its_history(database: Database, saved: list[str]) -> None:
    put(database, "champion", saved[0])
    delete_alias(database, "champion")

    again = put(database, "champion", saved[2], "ben")

    assert (again.version, again.moved_by) == (3, "ben")
    assert [move.checkpoint_id for move in history(database, "champion")] == [saved[2], None, saved[0]]


def test_what_does_not_move_an_alias_leaves_no_row(database: Database, saved: list[str]) -> None:
    put(database, "champion", saved[0], "ann")
    put(database, "champion", saved[0], "ben")
    with pytest.raises(AliasMoved), database.write() as session:
        AliasService(session, "cem").put("champion", saved[2], compare=True, expected=saved[1])

    def move_and_fail() -> None:
        with database.write() as session:
            AliasService(session, "dan").put("champion", saved[2], compare=False, expected=None)
            raise RuntimeError("before the commit")

    with pytest.raises(RuntimeError):
        move_and_fail()

    assert [(move.checkpoint_id, move.moved_by) for move in history(database, "champion")] == [(saved[0], "ann")]


def test_the_history_outlives_the_checkpoints_and_their_run(database: Database, saved: list[str]) -> None:
    put(database, "champion", saved[0])
    delete_alias(database, "champion")
    with database.write() as session:
        session.execute(delete(Run))

    assert [move.checkpoint_id for move in history(database, "champion")] == [None, saved[0]]


def test_moves_at_the_same_time_each_get_a_number(database: Database, saved: list[str]) -> None:
    barrier = threading.Barrier(6)

    def move(number: int) -> None:
        barrier.wait()
        for _ in range(3):
            put(database, "champion", saved[number % 3], f"mover {number}")

    threads = [threading.Thread(target=move, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    moves = history(database, "champion")
    assert [move.version for move in moves] == list(range(len(moves), 0, -1))
    assert all(new.checkpoint_id != old.checkpoint_id for new, old in pairwise(moves))
    with database.read() as session:
        alias = AliasRepository(session).get("champion")
    assert (alias.checkpoint_id, alias.version, alias.moved_by) == (
        moves[0].checkpoint_id,
        moves[0].version,
        moves[0].moved_by,
    )


def test_an_alias_that_the_previous_release_moved_has_no_author_and_moves_on(
    database: Database, saved: list[str]
) -> None:
    put(database, "champion", saved[0], "ann")
    with database.write() as session:  # as the previous release does: no row in the history
        alias = AliasRepository(session).get("champion")
        alias.checkpoint_id, alias.version = saved[1], 2
    with database.read() as session:
        unknown = AliasRepository(session).get("champion").moved_by

    moved = put(database, "champion", saved[2], "ben")

    assert unknown is None
    assert (moved.version, moved.moved_by) == (3, "ben")
    assert [move.version for move in history(database, "champion")] == [3, 1]


def test_an_alias_without_any_history_has_an_empty_one_and_one_that_never_was_is_not_found(
    database: Database, saved: list[str]
) -> None:
    put(database, "champion", saved[0])
    with database.write() as session:
        session.execute(delete(AliasMove))

    assert history(database, "champion") == []
    with pytest.raises(AliasNotFound):
        history(database, "never")


def test_projects_have_histories_of_their_own(database: Database) -> None:
    for project in ("ours", "theirs"):
        view = database.within(project)
        (checkpoint,) = save_checkpoints(view, 100)
        put(view, "champion", checkpoint, project)

    assert [move.moved_by for move in history(database.within("ours"), "champion")] == ["ours"]
    assert [move.moved_by for move in history(database.within("theirs"), "champion")] == ["theirs"]


def test_over_http_the_author_is_the_name_of_the_token_and_pages_are_newest_first(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss") as world:
        first, second = save_checkpoints(world.services.database, 100, 200)
        token = world.http.post("/v1/tokens", json={"name": "nightly-job", "scopes": ["run"]}).json()["token"]
        job = {"Authorization": f"Bearer {token}"}
        for checkpoint, headers in ((first, {}), (second, job), (first, job)):
            answer = world.http.put("/v1/aliases/champion", json={"checkpoint_id": checkpoint}, headers=headers)
            assert answer.status_code == 200, answer.text
        alias = world.http.get("/v1/aliases/champion").json()
        world.http.delete("/v1/aliases/champion", headers=job).raise_for_status()

        found, pages = list[dict[str, object]](), 0
        parameters: dict[str, str | int] = {"page_size": 3}
        while pages == 0 or parameters["page_token"]:
            page = world.http.get("/v1/aliases/champion/history", params=parameters).json()
            found += page["moves"]
            pages, parameters = pages + 1, {"page_size": 3, "page_token": page["next_page_token"]}
        missing: httpx2.Response = world.http.get("/v1/aliases/never/history")
        by_job = world.http.get("/v1/aliases/champion/history", params={"filter": 'moved_by = "nightly-job"'}).json()

    assert alias["moved_by"] == "nightly-job"
    assert [(move["version"], move["checkpoint_id"], move["moved_by"]) for move in found] == [
        (4, None, "nightly-job"),
        (3, first, "nightly-job"),
        (2, second, "nightly-job"),
        (1, first, "configured token"),
    ]
    assert pages == 2
    assert (missing.status_code, missing.json()["code"]) == (404, "alias_not_found")
    assert [move["version"] for move in by_job["moves"]] == [4, 3, 2]
