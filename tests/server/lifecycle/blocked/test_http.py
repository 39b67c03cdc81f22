"""What runs wait for, over HTTP."""

import pytest
from sqlalchemy import text

from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.server.app.routes import token_of
from tests.server.app.world import CARTPOLE, World

EVERYWHERE = {"Ludus-Project": "*"}


@pytest.mark.parametrize("path", ["/v1/runs/{run}", "/v1/runs?filter=name%20=%20behind"])
def test_a_token_of_another_project_learns_that_a_slot_is_held_and_not_by_which_run(world: World, path: str) -> None:
    with world.services.database.write() as session:
        session.execute(text("UPDATE runs SET state = 'CANCELLED'"))  # those of other tests, on the same worker
    WorkerRegistry(world.services.database).register(WorkerInfo("host/1/1", "host", 1, "0"))
    world.claim(world.create(name="secret")["id"])
    theirs = token_of(world, "run", "theirs")
    created = world.http.post("/v1/runs", json={"config": CARTPOLE, "name": "behind"}, headers=theirs)
    address = path.format(run=created.json()["id"])

    said = [world.http.get(address, headers=headers).text for headers in (theirs, EVERYWHERE)]

    assert "held by a run of another project (STARTING, no simulator has joined for " in said[0]
    assert "secret" not in said[0]
    assert "held by run secret of project default (STARTING, no simulator has joined for " in said[1]
