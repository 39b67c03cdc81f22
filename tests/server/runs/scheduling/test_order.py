"""Whose turn it is: the project with the fewest runs, then priority, token, owner and age; quotas; no run starves."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer, no_slot_serves
from server.runs.scheduling.order import Account, InTraining, Waiting, in_order, obstacle

NOW = 100_000.0
LABELS = st.frozensets(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True), max_size=8)


def waiting(
    run_id: str,
    *,
    project: str = "default",
    token: str = "",
    owner: str = "",
    demand: str = "",
    priority: int = 0,
    waited: float = 0,
    ready: bool = False,
) -> Waiting:
    return Waiting(run_id, Account(project, token, owner), demand, priority, NOW - waited, ready)


def order(
    *runs: Waiting, running: dict[tuple[str, str, str], int] | None = None, offer: Offer | None = None, **policy: Any
) -> list[str]:
    settings = SchedulingSettings(**policy)
    counts = InTraining({Account(*account): count for account, count in (running or {}).items()})
    return [one.run_id for one in in_order(runs, counts, offer or Offer(), settings, NOW)]


def test_the_highest_priority_goes_first_then_the_owner_with_the_fewest_then_the_oldest() -> None:
    runs = [
        waiting("busy owner", owner="ada", waited=50),
        waiting("young", owner="bob", waited=10),
        waiting("old", owner="cyd", waited=20),
        waiting("urgent", owner="ada", priority=1),
    ]

    assert order(*runs, running={("default", "", "ada"): 1}) == ["urgent", "old", "young", "busy owner"]


def test_a_run_of_low_priority_is_not_kept_waiting_for_ever() -> None:
    runs = [waiting("patient", waited=3 * 60), waiting("urgent", priority=3, waited=59)]

    assert order(*runs, aging_seconds=60) == ["patient", "urgent"]
    assert order(*runs, aging_seconds=3600) == ["urgent", "patient"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["tok_1", "tok_2"]), st.sampled_from(["ada", "bob"]), st.floats(0, 3599), st.booleans()
        )
    ),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_of_a_projects_runs_of_one_priority_those_whose_games_wait_go_first_within_an_hour(
    runs: list[tuple[str, str, float, bool]], of_ada: int, of_bob: int
) -> None:
    queue = [
        waiting(str(number), token=token, owner=owner, waited=waited, ready=ready)
        for number, (token, owner, waited, ready) in enumerate(runs)
    ]

    ready = [
        queue[int(run_id)].ready
        for run_id in order(*queue, running={("default", "tok_1", "ada"): of_ada, ("default", "tok_2", "bob"): of_bob})
    ]

    assert ready == sorted(ready, reverse=True)


def test_a_game_that_waits_outweighs_an_hour_of_waiting_and_no_more() -> None:
    """So a run whose games are started when it has a slot is not kept waiting for ever."""
    runs = [waiting("game", ready=True, waited=10), waiting("patient", waited=3700), waiting("pushed", priority=2)]

    assert order(*runs) == ["pushed", "patient", "game"]
    assert order(*runs, aging_seconds=4000) == ["pushed", "game", "patient"]


def test_a_game_that_waits_decides_between_projects_that_have_equally_many_in_training() -> None:
    runs = [waiting("old", project="a", waited=60), waiting("game", project="b", ready=True)]

    assert order(*runs) == ["game", "old"]
    assert order(*runs, running={("b", "", ""): 1}) == ["old", "game"]


def test_a_project_with_fewer_runs_goes_first_whatever_priority_another_one_gives_its_runs() -> None:
    runs = [
        waiting("pushed", project="a", priority=1000, waited=5),
        waiting("plain", project="b", waited=1),
        waiting("older", project="b", priority=-1, waited=9),
    ]

    assert order(*runs, running={("a", "", ""): 1}) == ["plain", "older", "pushed"]
    assert order(*runs) == ["pushed", "plain", "older"], "as many of each: the run that waited longer, of the next ones"


def test_more_owners_gain_a_token_nothing_over_another_token() -> None:
    runs = [
        waiting("a fourth owner", token="tok_1", owner="d", waited=50),
        waiting("the only one", token="tok_2", owner="me", waited=1),
        waiting("one more of b", token="tok_1", owner="b", waited=60),
    ]
    running = {("default", "tok_1", "a"): 1, ("default", "tok_1", "b"): 1, ("default", "tok_2", "me"): 1}

    assert order(*runs, running=running) == ["the only one", "a fourth owner", "one more of b"]


def test_a_project_or_token_whose_quota_is_used_up_is_passed_over_whatever_the_priority_and_owner() -> None:
    runs = [
        waiting("over", project="a", owner="a new one", priority=1000),
        waiting("under", project="b", token="tok_1"),
        waiting("own", project="c"),
    ]
    running = {("a", "", "ada"): 2, ("c", "", "cyd"): 2}

    assert order(*runs, running=running, runs_per_project=2, project_quotas={"c": 3}) == ["under", "own"]
    assert order(*runs, token_quotas={"tok_1": 0}) == ["over", "own"]
    assert order(*runs, running={("z", "tok_1", ""): 1}, runs_per_token=1, token_quotas={"": 9}) == ["over", "own"]


@pytest.mark.parametrize("former", ["runs_per_owner", "owner_quotas"])
def test_a_quota_of_owners_is_refused_with_what_to_set_instead(former: str) -> None:
    with pytest.raises(ValidationError, match="runs_per_project, project_quotas, runs_per_token or token_quotas"):
        SchedulingSettings.model_validate({former: {}})


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

    assert no_slot_serves(wanted, Counter([Offer(), Offer(1, frozenset({"a100"}))])) is None
    assert "start one" in str(no_slot_serves(wanted, {}))
    assert "of 1 live slot none has the label a100" in str(no_slot_serves(wanted, {Offer(1): 1}))
    assert "of 7 live slots none has the label a100" in str(no_slot_serves(wanted, {Offer(1): 3, Offer(2): 4}))
    assert "none has a GPU" in str(no_slot_serves(Demand(1), {Offer(0, frozenset({"a100"})): 1}))
    assert "the largest has 2" in str(no_slot_serves(Demand(4), Counter([Offer(2), Offer(1)])))
    apart = Counter([Offer(1), Offer(0, frozenset({"a100"}))])
    assert "wants 1 GPU and the label a100, and of 2 live slots none has all of it" in str(
        no_slot_serves(wanted, apart)
    )


def test_what_a_run_waits_for_beside_its_turn_is_said() -> None:
    policy = SchedulingSettings(
        runs_per_project=2, project_quotas={"guests": 0}, runs_per_token=3, token_quotas={"": 1, "tok_2": 0}
    )

    def why(account: Account, running: int, demand: str = "") -> str | None:
        found = obstacle(account, demand, {Offer(): 1}, InTraining({account: running}), policy)
        return None if found is None else f"{found.event}: {found.sentence}"

    bots = Account("bots", "tok_1", "ada")
    assert why(bots, running=1) is None
    assert "no_worker_serves: No worker can train this run: it wants 1 GPU" in (why(bots, 2, "1;") or "")
    assert (why(bots, running=2) or "").startswith("quota_reached: The project `bots` has 2 runs in training, as many")
    guest = why(Account("guests", "tok_1", ""), running=0) or ""
    assert "The project `guests` may have no run in training here (LUDUS_SCHEDULING__PROJECT_QUOTAS" in guest
    nameless = why(Account("bots", "", "ada"), running=1) or ""
    assert "The group of runs without a token has 1 run in training" in nameless
    refused = why(Account("bots", "tok_2", "ada"), running=0) or ""
    assert "The token `tok_2`, which created this run, may have no run in training here" in refused
    policy = SchedulingSettings(runs_per_token=1)
    assert "The token `tok_1`, which created this run, has 1 run in training, as many" in (why(bots, 1) or "")
