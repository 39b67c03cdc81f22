"""What runs that do not go on wait for, and when they need a person."""

from typing import Any

import pytest
from sqlalchemy import text

from ludus.schemas.states import RunState, StopReason
from server.kit.db.database import Database
from server.kit.scheduling import SchedulingSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.blocked import BlockedRepository, span
from server.lifecycle.claims.repository import RunQueue
from server.runs.models import Run
from server.runs.repository import RunRepository
from server.runs.scheduling.demand import Offer
from server.runs.scheduling.order import Obstacle
from server.runs.scheduling.repository import WaitingRuns
from server.simulators.repository import Placement
from server.workers.repository import CordonRepository, WorkerInfo, WorkerRegistry, WorkerRepository
from tests.factories import CONFIG, make_run
from tests.server.app.routes import token_of
from tests.server.app.world import CARTPOLE, World

ALIVE_SECONDS = 10.0


def register(database: Database, *slots: str, labels: tuple[str, ...] = (), gpus: tuple[str, ...] = ()) -> None:
    for slot in slots:
        info = WorkerInfo(slot, "host", 1, "0", labels=labels, resources={"gpus": list(gpus)})
        WorkerRegistry(database).register(info)


def take(database: Database, slot: str, state: RunState = RunState.STARTING, **fields: Any) -> AttemptLedger:
    """Have a slot take a new run."""
    run = make_run(database, **fields)
    with database.read() as session:
        offers = {each.id: each.offer for each in WorkerRepository(session).alive(ALIVE_SECONDS)}
    offer = offers.get(slot, Offer(8, frozenset({"a100"})))
    claim = RunQueue(database).claim(slot, 600, hint=run.id, offer=offer)
    assert claim is not None
    assert claim.run_id == run.id
    ledger = AttemptLedger(database, claim)
    if state is not RunState.STARTING:
        ledger.move(state)
    return ledger


def connect(ledger: AttemptLedger, session_id: str = "game") -> None:
    ledger.simulators.connected(session_id, number=0, collector=0, behaviors=["CartPole"])


def age(database: Database, seconds: float) -> None:
    """Let everything that has happened so far have happened earlier."""
    with database.write() as session:
        session.execute(text(f"UPDATE attempts SET started_at = started_at - {seconds}"))
        session.execute(text(f"UPDATE runs SET updated_at = updated_at - {seconds}, queued_at = queued_at - {seconds}"))
        session.execute(text(f"UPDATE events SET at = at - {seconds}"))
        moved = f"connected_at = connected_at - {seconds}, left_at = left_at - {seconds}"
        session.execute(text(f"UPDATE simulators SET joined_at = joined_at - {seconds}, {moved}"))


def look(database: Database, run: str, project: str | None = None) -> tuple[str | None, bool]:
    """Return what a run waits for, and whether it needs a person."""
    with database.within(project).read() as session:
        found = RunRepository(session).get(run)
        blocked = BlockedRepository(session, ALIVE_SECONDS).of([found], with_limits=True)[found.id]
    with database.within(project).read() as session:
        rows = RunRepository(session).list().items
        listed = BlockedRepository(session, ALIVE_SECONDS).of(rows)[found.id]
        assert listed.needs_action == blocked.needs_action, "a list says the same"
    return blocked.waits_for, blocked.needs_action


def waits_for(database: Database, run: str, project: str | None = None) -> str | None:
    return look(database, run, project)[0]


def test_a_run_behind_one_without_simulators_is_told_who_holds_the_slot_and_why(database: Database) -> None:
    register(database, "slot")
    take(database, "slot", name="nightly")
    make_run(database, name="next")
    age(database, 240)
    register(database, "slot")  # it lives on

    held_by = "run nightly (STARTING, no simulator has joined for 4 min)"
    assert look(database, "next") == (f"A free slot: the only slot that can train it is held by {held_by}.", False)
    assert waits_for(database, "nightly") == (
        "Simulators: no simulator has joined for 4 min. It pauses after 10 min without one "
        "(simulators.startup_grace_seconds)."
    )


def test_the_slots_that_count_are_those_that_can_train_the_run_and_idle_runs_are_named_first(
    database: Database,
) -> None:
    register(database, "plain")
    register(database, "a", "b", labels=("a100",))
    take(database, "plain", name="elsewhere")
    connect(take(database, "a", RunState.RUNNING, name="at work"))
    left = take(database, "b", RunState.RUNNING, name="idle")
    connect(left, "other")
    left.simulators.left("other", code="left", reason="bye", steps=5)
    make_run(database, name="next", config={**CONFIG, "resources": {"labels": ["a100"]}})

    sentence = waits_for(database, "next") or ""

    assert sentence.startswith("A free slot: all 2 slots are held by run idle (RUNNING, all simulators have been gone ")
    assert sentence.endswith(" and run at work (RUNNING).")


def test_many_holders_are_counted_and_some_named(database: Database) -> None:
    slots = [f"slot-{number}" for number in range(7)]
    register(database, *slots)
    for slot in slots:
        connect(take(database, slot, RunState.RUNNING, name=f"on-{slot}"), slot)
    make_run(database, name="next")

    assert (waits_for(database, "next") or "").endswith("run on-slot-4 (RUNNING) and 2 more.")


@pytest.mark.parametrize("idle", ["a free slot", "no slot"])
def test_a_run_waits_for_no_slot_while_one_is_free_or_none_is_known(database: Database, idle: str) -> None:
    register(database, *(["slot", "free"] if idle == "a free slot" else []))
    take(database, "slot", name="first")
    make_run(database, name="next")

    assert waits_for(database, "next") is None


def test_a_quota_names_the_runs_of_the_project(database: Database) -> None:
    register(database, "slot", "free")
    take(database, "slot", name="first", owner="ada")
    run = make_run(database, name="next", owner="ada")
    with database.write() as session:
        WaitingRuns(session).inform(run.id, Obstacle("quota_reached", "Ada has one.", "info"))

    sentence = waits_for(database, "next") or ""

    assert sentence.startswith("Ada has one. Trained now: run first (STARTING, no simulator has joined for ")


def test_runs_of_other_projects_are_told_of_without_their_names(database: Database) -> None:
    register(database, "slot")
    take(database.within("theirs"), "slot", name="secret")
    make_run(database.within("ours"), name="next")

    ours, all_players = waits_for(database, "next", "ours") or "", waits_for(database, "next") or ""

    assert "secret" not in ours
    assert "held by a run of another project (STARTING, no simulator has joined for " in ours
    assert "held by run secret of project theirs (STARTING, " in all_players


def test_a_run_with_a_simulator_or_without_need_of_one_waits_for_nothing(database: Database) -> None:
    register(database, "a", "b")
    connect(take(database, "a", RunState.RUNNING, name="played"))
    take(database, "b", RunState.RUNNING, name="clone", config=CONFIG)
    with database.write() as session:
        session.execute(text("UPDATE runs SET kind = 'clone' WHERE name = 'clone'"))

    assert look(database, "played") == look(database, "clone") == (None, False)


def test_the_absence_of_a_new_attempt_begins_with_it(database: Database) -> None:
    register(database, "slot")
    first = take(database, "slot", RunState.RUNNING, name="run")
    connect(first)
    first.release("released", "The worker shuts down.")
    age(database, 3600)
    claim = RunQueue(database).claim("slot", 600)
    assert claim is not None

    assert (waits_for(database, "run") or "").startswith("Simulators: no simulator has joined for 0")


def test_a_list_says_what_its_runs_wait_for(database: Database) -> None:
    register(database, "slot")
    take(database, "slot", name="nightly")
    make_run(database, name="next")

    with database.read() as session:
        runs = list(RunRepository(session).list().items)
        blocked = BlockedRepository(session, ALIVE_SECONDS).of(runs)
        told = {run.name: blocked[run.id].waits_for for run in runs}

    assert (told["next"] or "").startswith("A free slot: the only slot that can train it is held by run nightly")
    assert (told["nightly"] or "").startswith("Simulators: no simulator has joined for ")


# when a person is needed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "auto_resume", "seconds", "needs"),
    [
        (StopReason.USER, True, 0, True),
        (StopReason.SIMULATORS_LOST, True, 0, False),
        (StopReason.SIMULATORS_LOST, True, 6, True),
        (StopReason.SIMULATORS_LOST, False, 0, True),
    ],
)
def test_a_paused_run_needs_a_person_unless_its_simulators_may_be_waking_it(
    database: Database, reason: StopReason, *, auto_resume: bool, seconds: float, needs: bool
) -> None:
    config = {**CONFIG, "simulators": {"auto_resume": auto_resume}}
    ledger = take(database, "slot", RunState.RUNNING, name="run", config=config)
    ledger.move(RunState.PAUSING, reason=reason)
    ledger.move(RunState.PAUSED, reason=reason, detail="It paused.")
    age(database, seconds)

    assert look(database, "run") == (None, needs)


@pytest.mark.parametrize(("grace", "seconds", "needs"), [(None, 500, False), (None, 700, True), (3600.0, 700, False)])
def test_a_run_without_simulators_needs_a_person_where_it_would_wait_without_limit(
    database: Database, grace: float | None, seconds: float, *, needs: bool
) -> None:
    take(database, "slot", name="run", config={**CONFIG, "simulators": {"startup_grace_seconds": grace}})
    age(database, seconds)

    sentence, needed = look(database, "run")

    assert needed == needs
    limit = "It waits without limit" if grace is None else "It pauses after 60 min without one"
    assert limit in (sentence or "")


@pytest.mark.parametrize(("seconds", "worker", "needs"), [(500, False, False), (700, False, True), (700, True, False)])
def test_a_queued_run_needs_a_person_when_no_worker_could_serve_it_for_long(
    database: Database, seconds: float, *, worker: bool, needs: bool
) -> None:
    run = make_run(database, name="run")
    with database.write() as session:
        WaitingRuns(session).inform(run.id, Obstacle("no_worker_serves", "No worker is there."))
    age(database, seconds)
    if worker:
        register(database, "slot")

    assert look(database, "run") == ("No worker is there.", needs)


def test_a_run_that_has_waited_long_for_its_turn_needs_nobody_when_the_worker_restarts(database: Database) -> None:
    make_run(database, name="run")
    age(database, 7200)

    assert look(database, "run") == (None, False), "nothing is said before the controller has looked for a while"


@pytest.mark.parametrize(
    ("seconds", "said"), [(-1, "0 s"), (59, "59 s"), (61, "1 min"), (240, "4 min"), (7000, "117 min"), (7300, "2 h")]
)
def test_durations_are_said_in_one_unit(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_configurations_of_earlier_releases_have_the_default_patience(database: Database) -> None:
    take(database, "slot", name="run")
    with database.write() as session:
        run = session.query(Run).one()
        run.config = {key: value for key, value in run.config.items() if key != "simulators"}

    assert "pauses after 10 min" in (waits_for(database, "run") or "")


def test_a_run_without_need_of_a_gpu_says_that_the_last_slot_with_gpus_is_kept_for_others(database: Database) -> None:
    register(database, "plain")
    take(database, "plain", name="here")
    register(database, "graphics", gpus=("GPU-a",))
    make_run(database, name="next")

    sentence = waits_for(database, "next")
    assert sentence is not None
    assert "the last idle one with GPUs is kept for a while for a run that demands one" in sentence
    assert "run here" in sentence

    register(database, "more graphics", gpus=("GPU-b",))
    assert waits_for(database, "next") is None


def look_with(database: Database, run: str, policy: SchedulingSettings) -> str | None:
    with database.read() as session:
        found = RunRepository(session).get(run)
        return BlockedRepository(session, ALIVE_SECONDS, policy).of([found])[found.id].waits_for


def test_a_quota_and_a_cordon_are_said_at_once_and_not_only_when_the_controller_has_recorded_them(
    database: Database,
) -> None:
    register(database, "slot", "other")
    take(database, "slot", name="first")
    waiting = make_run(database, name="second")

    quota = SchedulingSettings(runs_per_project=1)
    assert look_with(database, waiting.id, quota) == (
        "The project `default` has 1 run in training, as many as allowed: this one follows when one of them ends. "
        "Trained now: run first (STARTING, no simulator has joined for 0 s)."
    )
    assert look_with(database, waiting.id, SchedulingSettings()) is None, "a slot is free"
    with database.write() as session:
        CordonRepository(session).add("slot", draining=False)
        CordonRepository(session).add("other", draining=False)
    sentence = "All 2 slots that fit are cordoned: lift that (`ludus worker uncordon`), or start another worker."
    assert look(database, waiting.id) == (sentence, False)


def test_that_no_worker_is_there_is_said_once_it_is_recorded_for_one_may_be_just_starting(database: Database) -> None:
    waiting = make_run(database)

    assert waits_for(database, waiting.id) is None


def test_a_run_whose_game_has_crashed_asks_for_its_repair_and_not_for_another_one(database: Database) -> None:
    register(database, "slot")
    ledger = take(database, "slot", RunState.RUNNING, name="jumper")
    words = "the game crashed: ValueError: level file missing (jumper.py:65)"
    connect(ledger)
    Placement(database).report("jumper", "game", "game_crashed", words)
    ledger.simulators.left("game", code="disconnected", reason="the connection to the simulator was lost", steps=7)

    asked = f"mend this before you start it again: {words}"
    assert asked in str(waits_for(database, "jumper"))
    ledger.move(RunState.PAUSING)
    ledger.move(RunState.PAUSED, reason=StopReason.SIMULATORS_LOST, detail="all simulators have been gone for 60 s")
    with database.read() as session:
        assert RunRepository(session).get("jumper").stop_detail == f"all simulators have been gone for 60 s; {asked}"


def test_a_run_that_refuses_its_game_says_why(database: Database) -> None:
    register(database, "slot")
    ledger = take(database, "slot", RunState.RUNNING, name="jumper")
    words = "the run's configuration has no behavior 'Stranger', only: Jumper"
    connect(ledger)
    ledger.simulators.left("game", code="behavior_not_configured", reason=words, steps=0)

    assert f"mend this before you start it again: {words}" in str(waits_for(database, "jumper"))


def test_a_game_that_plays_again_has_no_crash_to_be_repaired(database: Database) -> None:
    register(database, "slot")
    ledger = take(database, "slot", RunState.RUNNING, name="jumper")
    connect(ledger)
    Placement(database).report("jumper", "game", "game_crashed", "the game crashed: ValueError")
    ledger.simulators.left("game", code="disconnected", reason="the connection to the simulator was lost", steps=7)
    age(database, 5)
    connect(ledger, "another")
    ledger.simulators.left("another", code="left", reason="it is done", steps=7)

    assert "repair" not in str(waits_for(database, "jumper"))


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
