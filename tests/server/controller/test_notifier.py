"""The notifier: wakes workers when they are needed, and only then."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.controller.notifier import AT_ONCE, WakeUpNotifier
from server.kit.db.database import Database
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import SchedulingSettings, Settings
from server.lifecycle.claims.repository import RunQueue
from server.runs.scheduling.demand import Offer
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.clock import Clock
from tests.factories import CONFIG, RecordingWakeUp, make_claim, make_run
from tests.server.kit.test_queue import consumers, wait_for


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def ringer(database: Database, wake_up: RecordingWakeUp, clock: Clock, tmp_path: Path) -> WakeUpNotifier:
    return WakeUpNotifier(database, wake_up, Settings(home=tmp_path), clock)


def add_slots(database: Database, *labels: str, count: int = 1, gpus: int = 0) -> list[str]:
    """Register idle slots with these labels, and as many GPUs each; return their ids."""
    ids = [f"{'-'.join(labels) or 'plain'}-{gpus}-{number}/1/0" for number in range(count)]
    for identity in ids:
        resources = {"gpus": [f"{identity}-{gpu}" for gpu in range(gpus)]}
        WorkerRegistry(database).register(WorkerInfo(identity, "host", 1, "0", labels, resources))
    return ids


def kind(*labels: str, gpus: int = 0) -> str:
    return Offer(gpus, frozenset(labels)).kind


def ticks(ringer: WakeUpNotifier, clock: Clock, count: int) -> None:
    """Let so many seconds pass, with a look in each."""
    for _ in range(count):
        clock.now += 1
        ringer.tick()


def test_what_the_controller_wants_rung_is_rung_at_once(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp
) -> None:
    add_slots(database, count=3)
    lost, fresh = make_run(database), make_run(database)
    ringer.wake(lost.id)

    ringer.tick()
    ringer.tick()

    assert wake_up.woken == [lost.id]
    assert fresh.id not in wake_up.woken, "its own ring is on the way"


def test_of_many_runs_that_lost_their_workers_so_many_wake_slots_at_a_time_as_can_claim(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp
) -> None:
    add_slots(database, count=3 * AT_ONCE)
    runs = [make_run(database).id for _ in range(2 * AT_ONCE + 2)]
    for run_id in runs:
        ringer.wake(run_id)

    assert ringer.tick() > 0, "more are to be woken soon"
    assert wake_up.woken == runs[:AT_ONCE]
    ringer.tick()
    assert wake_up.woken == runs[:AT_ONCE], "none of them has claimed"
    for number in range(AT_ONCE - 5):
        make_claim(database, f"plain-0-{number}/1/0")
    ringer.tick()
    assert wake_up.woken == runs[: 2 * AT_ONCE - 5]
    for number in range(AT_ONCE):
        make_claim(database, f"plain-0-{AT_ONCE + number}/1/0")
    assert ringer.tick() == 0
    assert wake_up.woken == runs


def test_while_slots_claim_slowly_no_more_are_woken_than_claim(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=4 * AT_ONCE)
    runs = [make_run(database).id for _ in range(3 * AT_ONCE)]
    for run_id in runs:
        ringer.wake(run_id)
    ringer.tick()

    for number in range(10):
        ticks(ringer, clock, 3)
        make_claim(database, f"plain-0-{number}/1/0")
        ringer.tick()

        assert wake_up.woken == runs[: AT_ONCE + number + 1], "one more for the one that has claimed"
    ticks(ringer, clock, 4)
    assert wake_up.woken[AT_ONCE + 10 :] == runs[10 : AT_ONCE + 10], "nobody claims any more: all are woken again"


def test_slots_that_are_woken_and_do_not_claim_keep_no_run_from_others_for_longer_than_a_message_takes(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, "moon", count=2 * AT_ONCE)
    add_slots(database, count=1)
    for _ in range(2 * AT_ONCE):
        ringer.wake(make_run(database, config=demanding("moon")).id)
    ringer.tick()
    other = make_run(database)
    wake_up.deaf = {kind("moon")}

    ticks(ringer, clock, 5)

    assert wake_up.woken[AT_ONCE:] == [other.id]


def test_a_run_that_waits_is_announced_again_within_five_seconds(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    run = make_run(database)
    ringer.tick()
    assert wake_up.woken == []  # its own ring is on the way

    ticks(ringer, clock, 12)

    assert wake_up.woken == [run.id] * 3  # after 4, 8 and 12 seconds


def test_rings_do_not_pile_up_while_all_workers_are_busy(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    make_run(database)
    wake_up.unheard = 1

    ticks(ringer, clock, 20)

    assert wake_up.woken == []


def test_a_run_that_was_claimed_is_not_announced(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    make_run(database)
    ringer.tick()
    make_claim(database)

    ticks(ringer, clock, 10)

    assert wake_up.woken == []


def demanding(*labels: str) -> dict[str, object]:
    return {**CONFIG, "resources": {"labels": list(labels)}}


def test_a_run_that_no_slot_serves_wakes_no_idle_slot_until_one_comes_that_does(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=5)
    run = make_run(database, config=demanding("moon"))

    ticks(ringer, clock, 60)
    assert wake_up.woken == []

    add_slots(database, "moon")
    ticks(ringer, clock, 5)
    assert set(wake_up.woken) == {run.id}


def test_a_run_that_a_quota_holds_back_wakes_no_idle_slot(
    database: Database, wake_up: RecordingWakeUp, clock: Clock, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, scheduling=SchedulingSettings(runs_per_project=1))
    add_slots(database, count=5)
    make_run(database)
    make_claim(database)
    make_run(database)

    ticks(WakeUpNotifier(database, wake_up, settings, clock), clock, 60)

    assert wake_up.woken == []


@pytest.mark.parametrize(("runs", "slots", "messages"), [(2, 5, 2), (5, 2, 2), (3, 0, 0)])
def test_no_more_slots_are_woken_than_there_are_runs_nor_messages_sent_than_idle_slots(
    database: Database,
    ringer: WakeUpNotifier,
    wake_up: RecordingWakeUp,
    clock: Clock,
    runs: int,
    slots: int,
    messages: int,
) -> None:
    add_slots(database, count=slots)
    for number in range(runs):
        make_run(database, name=f"run-{number}")

    ticks(ringer, clock, 5)

    assert len(wake_up.woken) == messages


def test_where_slots_differ_as_many_of_those_that_serve_runs_are_woken_as_there_are_runs(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=3)
    add_slots(database, "moon", count=2)
    add_slots(database, "moon", gpus=1)
    plain, moon = make_run(database), make_run(database, config=demanding("moon"))

    ticks(ringer, clock, 5)

    assert Counter(zip(wake_up.woken, wake_up.kinds, strict=True)) == {
        (plain.id, kind()): 1,
        (moon.id, kind("moon")): 1,
    }


def test_a_slot_that_starts_beside_runs_that_others_serve_wakes_none(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=5)
    for _ in range(3):
        make_run(database, config=demanding("mars"))
    ticks(ringer, clock, 5)

    add_slots(database, "moon")
    add_slots(database, gpus=2)
    ticks(ringer, clock, 20)
    assert wake_up.woken == []

    add_slots(database, "mars")
    ticks(ringer, clock, 5)
    assert set(wake_up.kinds) == {kind("mars")}


def test_many_runs_of_one_kind_of_slots_hide_none_of_another(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    add_slots(database, "moon")
    for _ in range(8):
        make_run(database, config=demanding("moon"), priority=9)
    run = make_run(database)

    ticks(ringer, clock, 5)

    assert sorted(map(str, wake_up.kinds)) == sorted([kind(), kind("moon")])
    assert run.id in wake_up.woken


def test_slots_that_do_not_listen_are_passed_over_for_larger_ones(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=3)
    add_slots(database, gpus=1)
    run = make_run(database)
    wake_up.deaf = {kind()}

    ticks(ringer, clock, 5)

    assert (wake_up.woken, wake_up.kinds) == ([run.id], [kind(gpus=1)])


class Fleet(RecordingWakeUp):
    """Idle slots that hear messages as real ones do: a message for all slots goes to any, else to one of its kind."""

    def __init__(self, database: Database, slots: Mapping[str, Offer], clock: Clock) -> None:
        super().__init__()
        self._idle = {worker_id: (offer, RunQueue(database, monotonic=clock)) for worker_id, offer in slots.items()}
        self._random = random.Random(7)
        self.claims = 0
        self.claimed: dict[str, str] = {}
        """Slot of each run."""

    def wake(self, run_id: str, kind: str | None = None) -> None:
        """Have a slot claim, and send the message on where it finds nothing."""
        hearing = [worker_id for worker_id, (offer, _) in self._idle.items() if kind in {None, offer.kind}]
        worker_id = self._random.choice(hearing)
        offer, queue = self._idle[worker_id]
        self.claims += 1
        claim = queue.claim(worker_id, 600, run_id, offer)
        if claim is not None:
            self.claimed[claim.run_id] = worker_id
            del self._idle[worker_id]
        elif queue.for_another is not None:
            self.wake(*queue.for_another)


def test_a_run_that_nobody_serves_costs_an_idle_fleet_no_claims_and_one_that_somebody_serves_is_claimed_at_once(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    slots = dict.fromkeys(add_slots(database, count=20), Offer())
    (moon,) = add_slots(database, "moon")
    fleet = Fleet(database, {**slots, moon: Offer(labels=frozenset({"moon"}))}, clock)
    ringer = WakeUpNotifier(database, fleet, Settings(home=tmp_path), clock)

    for _ in range(3):  # the message that each new run sends is for all slots
        fleet.wake(make_run(database, config=demanding("mars")).id)
    first = fleet.claims
    ticks(ringer, clock, 60)
    assert (first, fleet.claims) == (3, 3)

    run = make_run(database, config=demanding("moon"))
    fleet.wake(run.id)
    assert fleet.claimed == {run.id: moon}
    assert fleet.claims <= 5  # by one slot that does not serve it, at most, and by the one that does

    ticks(ringer, clock, 60)
    assert fleet.claims <= 5


def a_run_left_to_a_busy_slot(database: Database, clock: Clock, home: Path) -> tuple[str, str, Fleet, WakeUpNotifier]:
    """Return a waiting run without GPUs and the id of the idle slot with GPUs that leaves the run to a busy slot."""
    add_slots(database)
    make_run(database)
    make_claim(database, "plain-0-0/1/0")
    (graphics,) = add_slots(database, gpus=1)
    fleet = Fleet(database, {graphics: Offer(1)}, clock)
    return make_run(database).id, graphics, fleet, WakeUpNotifier(database, fleet, Settings(home=home), clock)


def test_the_last_idle_slot_with_gpus_is_woken_once_for_a_run_that_it_leaves_and_again_when_it_takes_it(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    run_id, graphics, fleet, ringer = a_run_left_to_a_busy_slot(database, clock, tmp_path)

    ticks(ringer, clock, 60)
    assert (fleet.claims, fleet.claimed) == (1, {}), "its time has begun"
    clock.now += 530
    ticks(ringer, clock, 1)
    assert fleet.claims == 1
    ticks(ringer, clock, 15)
    assert fleet.claimed == {run_id: graphics}
    assert fleet.claims == 2


def test_a_slot_that_leaves_a_run_no_longer_is_woken_for_it_at_once(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    run_id, graphics, fleet, ringer = a_run_left_to_a_busy_slot(database, clock, tmp_path)
    ticks(ringer, clock, 20)
    assert fleet.claimed == {}

    WorkerRegistry(database).stopped("plain-0-0/1/0")
    ticks(ringer, clock, 1)

    assert fleet.claimed == {run_id: graphics}


@pytest.mark.long
def test_celery_s_workers_hear_nothing_of_a_run_that_they_do_not_serve(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path)
    ringer = WakeUpNotifier(database, WakeUpQueue(make_celery(settings)), settings, clock)
    add_slots(database, count=2)
    make_run(database, config=demanding("moon"))
    with consumers(settings.home, 2, kind(), kind()) as outputs:
        ticks(ringer, clock, 30)
        run = make_run(database)
        ticks(ringer, clock, 5)
        assert wait_for(outputs, 1, 60) == [run.id]
