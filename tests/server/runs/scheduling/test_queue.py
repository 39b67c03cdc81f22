"""The queue by demand: what waits, what quotas allow, what slots lack; pools and names of demands."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer, Slot, leaves, pool_of
from server.runs.scheduling.order import Account, InTraining, obstacle
from server.runs.scheduling.queue import DemandSlots, QueuedDemand, WaitingGroup, queue_by_demand
from tests.server.runs.scheduling.test_demand import DEMANDS, SLOTS

NOW = 1000.0
LABELS = st.frozensets(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True), max_size=8)
POOLS = {"cpu": {}, "a100": {"gpus": 1, "labels": ["a100"]}, "big": {"gpus": 8, "labels": ["a100"]}}


def group(demand: str, runs: int, *, project: str = "p", token: str = "", waited: float = 0) -> WaitingGroup:
    return WaitingGroup(Account(project, token, ""), demand, runs, NOW - waited)


def queue(
    *groups: WaitingGroup,
    slots: list[Slot] | None = None,
    running: dict[Account, int] | None = None,
    asked: Demand | None = None,
    **policy: Any,
) -> dict[str, QueuedDemand]:
    counted = Counter(slots or [])
    found = queue_by_demand(groups, InTraining(running or {}), counted, SchedulingSettings(**policy), NOW, asked)
    return {each.demand.name: each for each in found}


def test_runs_are_counted_by_demand_with_the_oldest_wait_and_the_slots_that_serve_them() -> None:
    slots = [
        Slot(Offer(1), idle=True),
        Slot(Offer(1), idle=False),
        Slot(Offer(0), idle=True),
        Slot(Offer(2, cordoned=True), idle=True),
    ]

    found = queue(group("", 2, waited=5), group("1", 3, waited=60), group("1", 1, project="q", waited=9), slots=slots)

    assert list(found) == ["1", "0"]
    assert (found["1"].runs, found["1"].oldest_seconds, found["1"].slots) == (4, 60.0, DemandSlots(1, 1, 1))
    assert (found["0"].runs, found["0"].oldest_seconds, found["0"].slots) == (2, 5.0, DemandSlots(2, 1, 1))
    assert (found["1"].missing_slots, found["0"].missing_slots) == (3, 1)  # the slot with a GPU is for one run only


def test_the_last_idle_slot_with_gpus_does_not_cover_a_run_that_it_leaves_to_a_busy_slot() -> None:
    busy = Slot(Offer(0), idle=False)

    one = queue(group("", 1), slots=[Slot(Offer(1), idle=True), busy], pools={"cpu": {}})["0"]
    two = queue(group("", 2), slots=[Slot(Offer(1), idle=True), Slot(Offer(2), idle=True), busy])["0"]
    both = queue(group("", 1), group("1", 1), slots=[Slot(Offer(1), idle=True), busy])

    assert (one.missing_slots, one.pool, one.slots) == (1, "cpu", DemandSlots(idle=1, busy=1, cordoned=0))
    assert two.missing_slots == 1, "the other one covers it"
    assert [both[name].missing_slots for name in ("0", "1")] == [1, 0]
    assert queue(group("", 1), slots=[Slot(Offer(1), idle=True)])["0"].missing_slots == 0, "no other slot serves it"


@given(demand=DEMANDS, slots=SLOTS, runs=st.integers(0, 8))
def test_as_many_runs_lack_a_slot_as_claims_one_after_the_other_leave(
    demand: Demand, slots: list[Slot], runs: int
) -> None:
    slots, waiting = list(slots), runs
    missing = queue(group(demand.text, runs), slots=slots)[demand.name].missing_slots

    def takers() -> list[int]:
        idle = [place for place, slot in enumerate(slots) if slot.idle and slot.offer.serves(demand)]
        return [place for place in idle if not leaves(demand, slots[place].offer, slots[:place] + slots[place + 1 :])]

    while waiting and (places := takers()):
        slots[places[-1]] = replace(slots[places[-1]], idle=False)
        waiting -= 1

    assert missing == waiting


def test_only_runs_that_quotas_allow_lack_a_slot() -> None:
    groups = [group("", 5, token="a", waited=9), group("1", 5, token="b", waited=5), group("", 5, project="q")]

    found = queue(*groups, running={Account("p", "a", ""): 1}, runs_per_project=4, token_quotas={"a": 2})

    assert (found["0"].startable_runs, found["0"].missing_slots) == (1 + 4, 5)
    assert (found["1"].startable_runs, found["1"].missing_slots) == (4 - 1 - 1, 2)


def test_a_demand_that_is_asked_for_is_there_without_a_run() -> None:
    assert queue(group("", 1), asked=Demand(2))["2"].missing_slots == 0


def test_a_demand_belongs_to_the_smallest_pool_that_serves_it() -> None:
    policy = SchedulingSettings(pools=POOLS)  # type: ignore[arg-type]  # pydantic reads mappings

    demands = [Demand(), Demand(1), Demand(1, frozenset({"a100"})), Demand(2), Demand(9), Demand(0, frozenset({"x"}))]

    assert [pool_of(demand, policy) for demand in demands] == ["cpu", "a100", "a100", "big", None, None]


def test_a_run_whose_pool_has_no_worker_yet_waits_without_a_warning_and_an_impossible_one_gets_a_sentence() -> None:
    policy = SchedulingSettings(pools=POOLS, project_quotas={"full": 0})  # type: ignore[arg-type]  # as above

    def why(demand: str, project: str = "p", offers: tuple[Offer, ...] = ()) -> tuple[str, str, str] | None:
        found = obstacle(Account(project, "", ""), demand, Counter(offers), InTraining({}), policy)
        return None if found is None else (found.event, found.level, found.sentence)

    assert why("1") == ("pool_awaited", "info", "It waits for a worker of the pool a100 to start.")
    assert why("1", offers=(Offer(1),)) is None
    full = why("1", "full")
    assert full is not None
    assert full[0] == "quota_reached"
    impossible = why("9", offers=(Offer(1),))
    assert impossible is not None
    assert impossible[:2] == ("no_worker_serves", "warning")
    assert "None of the pools a100, big, cpu has it" in impossible[2]
    assert queue(group("9", 1), pools=POOLS)["9"].explanation is not None
    assert queue(group("1", 1), pools=POOLS)["1"].explanation is None


def test_a_run_whose_slots_are_all_cordoned_says_so() -> None:
    offers = [Offer(1, cordoned=True), Offer(0)]

    found = obstacle(Account("p", "", ""), "1", Counter(offers), InTraining({}), SchedulingSettings())

    assert found is not None
    assert "The only slot that fits is cordoned: lift that (`ludus worker uncordon`)" in found.sentence


@given(st.builds(Demand, st.integers(0, 64), LABELS))
def test_a_demand_is_read_from_its_name(demand: Demand) -> None:
    assert Demand.named(demand.name) == demand


@pytest.mark.parametrize("name", ["", "gpu", "-1", "1;", "1;a,", "1 a100", "1;a b", "100"])
def test_a_name_that_is_no_demand_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="number of GPUs, and labels after a semicolon"):
        Demand.named(name)


@pytest.mark.parametrize(
    "pools", [{"a b": {}}, {"gpu": {"gpu": 1}}, {"gpu": {"gpus": -1}}, {"gpu": {"labels": ["a b"]}}]
)
def test_a_pool_that_cannot_be_meant_is_refused(pools: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings(pools=pools)
