"""Commands that stay with a run, and a run that goes on only if somebody acts."""

import json
import threading
import time
from typing import Any

import pytest
from sqlalchemy import text

from ludus.cli.exits import Exit
from ludus.client import Client, RunStalled, WaitTimedOut
from ludus.client.runs import LONG_POLL_SECONDS
from ludus.schemas.states import RunState, StopReason
from server.runs.scheduling.order import Obstacle
from server.runs.scheduling.repository import WaitingRuns
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.factories import save_checkpoints
from tests.ludus.cli.conftest import Invoke, as_json, printed
from tests.server.app.world import CARTPOLE, World
from tests.server.lifecycle.test_blocked import age
from tests.waiting import eventually, never

WAITS_LONG = {**CARTPOLE, "simulators": {"startup_grace_seconds": None}}


def paused(world: World, reason: StopReason = StopReason.USER, detail: str = "paused on request") -> str:
    trainer = world.claim(world.create()["id"]).start()
    trainer.finish(RunState.PAUSING, reason=reason)
    trainer.finish(RunState.PAUSED, reason=reason, detail=detail)
    return trainer.run_id


def without_simulators(world: World, **fields: Any) -> str:
    """Return a run that has had no simulator for 11 minutes, and that waits for one without limit."""
    run_id = world.claim(world.create(WAITS_LONG, **fields)["id"]).run_id
    age(world.services.database, 660)
    return run_id


def without_workers(world: World) -> str:
    run_id = str(world.create()["id"])
    with world.services.database.write() as session:
        session.execute(text("DELETE FROM workers"))
        WaitingRuns(session).inform(run_id, Obstacle("no_worker_serves", "No worker is there: start one."))
    age(world.services.database, 660)
    return run_id


def without_simulators_any_more(world: World) -> str:
    detail = "all simulators have been gone for 60 s; start one, and the run goes on by itself"
    run_id = paused(world, StopReason.SIMULATORS_LOST, detail)
    age(world.services.database, 660)
    return run_id


STALLS = {
    "paused without simulators": (
        without_simulators_any_more,
        "is PAUSED (all simulators have been gone for 60 s; start one, and the run goes on by itself)\n",
    ),
    "paused": (paused, "is PAUSED (paused on request); `ludus run resume {run}` resumes it"),
    "no simulator": (
        without_simulators,
        "is STARTING and does not continue by itself. It waits for: Simulators: no simul",
    ),
    "no worker": (
        without_workers,
        "is QUEUED and does not continue by itself. It waits for: No worker is there: start",
    ),
}


@pytest.mark.parametrize(
    ("command", "stall"), [*(("wait", stall) for stall in STALLS), ("watch", "paused"), ("watch --json", "paused")]
)
def test_what_stays_with_a_run_ends_at_once_with_a_code_of_its_own_and_says_what_to_do(
    cli: Invoke, world: World, command: str, stall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.client.runs.STALL_POLL_SECONDS", LONG_POLL_SECONDS)  # the first look has to see it
    make, said = STALLS[stall]
    run = make(world)
    began = time.monotonic()

    result = cli("run", *command.split(), run)

    assert result.exit_code == Exit.STALLED == 10
    assert time.monotonic() - began < 5
    assert f"run {run} {said.format(run=run)}" in result.stderr
    if command == "watch --json":
        assert json.loads(result.stdout.splitlines()[0])["type"] == "run_created", "the past comes first"


def test_the_judgement_of_a_wait_that_stalled_has_the_run(cli: Invoke, world: World) -> None:
    run = paused(world)

    result = cli("run", "wait", run, "--json", "--require", "reward>=1")

    assert result.exit_code == Exit.STALLED
    found = json.loads(result.stdout)
    assert (found["run"]["state"], found["run"]["needs_action"], found["requirements"]) == ("PAUSED", True, [])


@pytest.mark.parametrize("make", [paused, without_simulators, without_workers])
def test_a_wait_that_was_told_to_keep_waiting_does(cli: Invoke, world: World, make: Any) -> None:
    result = cli("run", "wait", make(world), "--keep-waiting", "--timeout", "0.5s")

    assert result.exit_code == Exit.TIMED_OUT


def test_a_watch_that_was_told_to_keep_waiting_sees_the_end(cli: Invoke, world: World) -> None:
    run = paused(world)
    threading.Timer(1.0, world.http.post, (f"/v1/runs/{run}:cancel",)).start()

    assert cli("run", "watch", run, "--keep-waiting").exit_code == Exit.RUN_CANCELLED


def test_a_pipeline_that_waits_before_its_simulators_have_come_waits_on(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create()["id"])
    age(world.services.database, 300)  # within the run's startup grace

    def play() -> None:
        trainer.start()
        trainer.ledger.simulators.connected("late", number=0, collector=0)
        trainer.finish()

    threading.Timer(0.3, play).start()

    assert cli("run", "wait", trainer.run_id).exit_code == Exit.OK


def test_a_pause_that_returning_simulators_end_in_the_same_moment_does_not_end_the_wait(
    cli: Invoke, world: World
) -> None:
    run = paused(world, StopReason.SIMULATORS_LOST, "all simulators have been gone for 60 s")

    def wake() -> None:
        world.http.post(f"/v1/runs/{run}:resume").raise_for_status()
        world.claim(run).start().finish()

    threading.Timer(0.5, wake).start()

    assert cli("run", "wait", run, "--timeout", "30s").exit_code == Exit.OK


def test_the_client_raises_where_it_was_asked_to(world: World) -> None:
    run = paused(world)

    with Client(world.server) as client:
        with pytest.raises(RunStalled) as stalled:
            client.runs.wait(run, timeout=30, unless_stalled=True)
        with pytest.raises(WaitTimedOut):
            client.runs.wait(run, timeout=0.2)
        assert client.runs.wait(run, ["PAUSED"], timeout=30, unless_stalled=True).state == "PAUSED", (
            "that was waited for"
        )

    assert stalled.value.run.id == run


@pytest.mark.parametrize("command", ["gate", "evaluate"])
def test_an_assessment_that_nobody_can_play_is_cancelled_and_has_no_verdict(
    cli: Invoke, world: World, command: str
) -> None:
    saved = save_checkpoints(world.services.database, 100, 200)
    arguments = [saved[1], "--against", saved[0]] if command == "gate" else [saved[1]]
    wait_for_nothing = ["--set", "simulators.startup_grace_seconds=null", "--name", f"idle-{command}"]

    def play_without_simulators() -> None:
        named = {"filter": f"name = idle-{command}"}
        runs = eventually(lambda: world.http.get("/v1/runs", params=named).json()["runs"])
        world.claim(runs[0]["id"])
        age(world.services.database, 660)

    threading.Thread(target=play_without_simulators).start()
    result = cli(command, *arguments, *wait_for_nothing)

    assert result.exit_code == Exit.STALLED
    assert "does not continue by itself. It waits for: Simulators: no simulator has joined for 11 min" in result.stderr
    assert "is cancelled" in result.stderr
    assert as_json(cli("run", "show", f"idle-{command}", "--json"))["intent"] == "cancel"


def test_what_a_run_waits_for_stands_in_show_list_and_watch(cli: Invoke, world: World) -> None:
    with world.services.database.write() as session:
        session.execute(text("DELETE FROM workers"))
        session.execute(text("UPDATE runs SET state = 'CANCELLED'"))  # those of other tests, on the same worker
    WorkerRegistry(world.services.database).register(WorkerInfo("host/1/1", "host", 1, "0"))
    holder = world.claim(world.create(name="holder")["id"]).run_id
    waiting = world.create(name="waiting")["id"]
    said = "A free slot: the only slot that can train it is held by run holder (STARTING, no simulator has joined for "

    def cancel() -> None:
        eventually(lambda: said in printed())
        never(lambda: printed().count(said) > 1, "it is said again, in one of ten looks", 1.0)
        world.http.post(f"/v1/runs/{waiting}:cancel")

    shown, listed = cli("run", "show", waiting).stdout, cli("run", "list", "--state", "queued").stdout
    threading.Thread(target=cancel, daemon=True).start()
    watched = cli("run", "watch", waiting).stdout

    assert said in shown
    assert [line for line in listed.splitlines() if waiting in line and said in line]
    assert watched.count(f"{waiting} waits for: {said}") == 1, "once, however long it takes"
    world.http.post(f"/v1/runs/{holder}:cancel")
