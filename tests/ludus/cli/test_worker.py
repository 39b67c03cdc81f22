"""`ludus worker list, cordon, uncordon, drain`: slots before the maintenance of their host."""

from datetime import datetime

import pytest
from sqlalchemy import update

from server.workers.models import Worker
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


@pytest.fixture(autouse=True)
def _slot(world: World) -> None:
    WorkerRegistry(world.services.database).register(
        WorkerInfo("cli-box/1/1", "cli-box", 1, "0.1.0", ["a100"], {"gpus": ["GPU-a"]})
    )


def test_a_slot_is_listed_with_its_state(cli: Invoke) -> None:
    def state() -> str:
        (line,) = [line for line in cli("worker", "list").stdout.splitlines() if line.startswith("cli-box/1/1")]
        return line

    assert state().split()[1:4] == ["idle", "1", "a100"]
    assert cli("worker", "cordon", "cli-box/1/1").exit_code == 0
    assert "idle, cordoned" in state()
    assert cli("worker", "drain", "cli-box").exit_code == 0
    assert "drained" in state()
    assert cli("worker", "uncordon", "cli-box").exit_code == 0
    assert "cordoned" not in state()


def test_a_slot_that_gives_no_sign_of_life_is_not_called_idle(world: World, cli: Invoke) -> None:
    WorkerRegistry(world.services.database).register(WorkerInfo("dead-box/1/1", "dead-box", 1, "0.1.0"))
    with world.services.database.write() as session:
        older = {"stored_heartbeat_at": Worker.stored_heartbeat_at - 3600}
        session.execute(update(Worker).where(Worker.host == "dead-box").values(**older))

    listed = cli("worker", "list", "--filter", "host = dead-box")
    (slot,) = as_json(cli("worker", "list", "--filter", "host = dead-box", "--json"))

    since = datetime.fromisoformat(slot["silent_since"]).astimezone()
    assert f"silent since {since:%Y-%m-%d %H:%M:%S}" in listed.stdout
    assert "idle" not in listed.stdout


def test_a_drain_waits_until_no_slot_has_a_run(world: World, cli: Invoke) -> None:
    WorkerRegistry(world.services.database).register(WorkerInfo("host/1/1", "host", 1, "0.1.0"))
    trainer = world.claim(world.create(name="drained")["id"]).start()

    late = cli("worker", "drain", "host", "--wait", "--timeout", "0s")
    trainer.ledger.release("released", "its worker is drained")
    done = cli("worker", "drain", "host", "--wait", "--json")
    cli("worker", "uncordon", "host")

    assert (late.exit_code, trainer.run_id in late.stderr) == (7, True)
    assert "host is drained: no slot of it has a run." in done.stderr
    assert [(each["id"], each["draining"]) for each in as_json(done) if each["id"] == "host/1/1"] == [
        ("host/1/1", True)
    ]


def test_a_slot_of_a_cordoned_host_and_an_unknown_name_get_a_sentence(cli: Invoke) -> None:
    cli("worker", "cordon", "cli-box")

    refused = cli("worker", "uncordon", "cli-box/1/1")
    unknown = cli("worker", "drain", "cli-bxo")
    cli("worker", "uncordon", "cli-box")

    assert (refused.exit_code, "lift the cordon of cli-box (`ludus worker uncordon cli-box`)" in refused.stderr) == (
        1,
        True,
    )
    assert (unknown.exit_code, "no host of this name" in unknown.stderr) == (1, True)
