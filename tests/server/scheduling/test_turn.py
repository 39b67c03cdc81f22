"""Whose turn it is: priority, then the owner with the fewest runs, then age; nobody waits for ever."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.demand import Demand, Offer, nobody_serves
from server.scheduling.turn import Waiting, by_turn, obstacle
from server.settings import SchedulingSettings

NOW = 100_000.0
LABELS = st.frozensets(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True), max_size=8)


def waiting(run_id: str, *, owner: str = "", demand: str = "", priority: int = 0, waited: float = 0) -> Waiting:
    return Waiting(run_id, owner, demand, priority, NOW - waited)


def order(
    *runs: Waiting, running: dict[str, int] | None = None, offer: Offer | None = None, **policy: Any
) -> list[str]:
    settings = SchedulingSettings(**policy)
    return [one.run_id for one in by_turn(runs, running or {}, offer or Offer(), settings, NOW)]


def test_the_highest_priority_goes_first_then_the_owner_with_the_fewest_then_the_oldest() -> None:
    runs = [
        waiting("busy owner", owner="ada", waited=50),
        waiting("young", owner="bob", waited=10),
        waiting("old", owner="cyd", waited=20),
        waiting("urgent", owner="ada", priority=1),
    ]

    assert order(*runs, running={"ada": 1}) == ["urgent", "old", "young", "busy owner"]


def test_a_run_of_low_priority_is_not_kept_waiting_for_ever() -> None:
    runs = [waiting("patient", waited=3 * 60), waiting("urgent", priority=3, waited=59)]

    assert order(*runs, aging_seconds=60) == ["patient", "urgent"]
    assert order(*runs, aging_seconds=3600) == ["urgent", "patient"]


def test_an_owner_whose_quota_is_used_up_is_passed_over_whatever_the_priority() -> None:
    runs = [waiting("over", owner="ada", priority=1000), waiting("under", owner="bob"), waiting("own", owner="cyd")]

    assert order(*runs, running={"ada": 2, "cyd": 2}, runs_per_owner=2, owner_quotas={"cyd": 3}) == ["under", "own"]
    assert order(*runs, owner_quotas={"bob": 0}) == ["over", "own"]


def test_a_slot_takes_only_what_it_serves() -> None:
    runs = [waiting("gpu", demand="1;"), waiting("label", demand="0;a100"), waiting("any")]

    assert order(*runs) == ["any"]
    assert order(*runs, offer=Offer(1, frozenset({"linux"}))) == ["any", "gpu"]
    assert order(*runs, offer=Offer(2, frozenset({"a100"}))) == ["any", "gpu", "label"]


@given(st.integers(0, 64), LABELS)
def test_a_demand_is_read_as_it_was_written_and_fits_its_column(gpus: int, labels: frozenset[str]) -> None:
    demand = Demand(gpus, labels)

    assert Demand.parse(demand.text) == demand
    assert len(demand.text) <= 400
    assert Demand.of({"resources": {"gpu": gpus, "labels": sorted(labels)}}) == demand


def test_an_old_configuration_demands_nothing() -> None:
    assert Demand.of({"behaviors": {}}) == Demand()
    assert Demand().text == ""


def test_it_is_said_why_nobody_serves_a_run() -> None:
    wanted = Demand(1, frozenset({"a100"}))

    assert nobody_serves(wanted, [Offer(), Offer(1, frozenset({"a100"}))]) is None
    assert "start one" in str(nobody_serves(wanted, []))
    assert "of 1 live slot none has the label a100" in str(nobody_serves(wanted, [Offer(1)]))
    assert "none has a GPU" in str(nobody_serves(Demand(1), [Offer(0, frozenset({"a100"}))]))
    assert "the largest has 2" in str(nobody_serves(Demand(4), [Offer(2), Offer(1)]))
    apart = [Offer(1), Offer(0, frozenset({"a100"}))]
    assert "wants 1 GPU and the label a100, and of 2 live slots none has all of it" in str(nobody_serves(wanted, apart))


def test_what_a_run_waits_for_beside_its_turn_is_said() -> None:
    policy = SchedulingSettings(runs_per_owner=2, owner_quotas={"guest": 0})

    def why(owner: str, demand: str, running: int) -> str | None:
        found = obstacle(owner, demand, [Offer()], {owner: running}, policy)
        return None if found is None else f"{found.event}: {found.sentence}"

    assert why("ada", "", running=1) is None
    assert "no_worker_serves: No worker can train this run: it wants 1 GPU" in (why("ada", "1;", running=2) or "")
    assert "quota_reached: The owner `ada` has 2 runs trained, as many as allowed" in (why("ada", "", running=2) or "")
    assert "quota_reached: Who gives no owner has 2 runs trained" in (why("", "", running=3) or "")
    assert "may have no run trained here" in (why("guest", "", running=0) or "")
