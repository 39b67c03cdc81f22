"""Lists of runs with chosen metrics, sorted by one of them."""

import random
import time
from typing import Any

import pytest
from sqlalchemy import insert

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.jobs import JobLoop
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.metrics.jobs import packing_job
from server.metrics.models import LatestMetric
from server.metrics.points import ListedMetric, MetricPoint
from server.metrics.repository import MetricRepository, values_by_run
from server.runs.models import Run
from server.runs.repository import RunRepository
from tests.factories import make_ledger, make_run, pack_metrics
from tests.server.app.world import World
from tests.statements import selected

REWARD = "Environment/Cumulative Reward"
BY_METRIC = Order("metric")


def listed(text: str) -> ListedMetric:
    return ListedMetric.parse(text)


def read(database: Database, metric: str, *, descending: bool = True, limit: int = 2, **query: Any) -> list[str]:
    """Read the names of all pages."""
    found: list[str] = []
    wanted = ListQuery(Order("metric", descending), limit=limit, **query)
    while True:
        with database.read() as session:
            page = RunRepository(session).list(wanted, values_by_run(listed(metric)))
        found += [run.name for run in page.items]
        if page.next is None:
            return found
        wanted = ListQuery(wanted.order, wanted.conditions, limit, page.next)


def measured(database: Database, name: str, **values: list[float]) -> None:
    """Have a run record a reward for each of its behaviors, and end."""
    ledger = make_ledger(database, name=name)
    for behavior, series in values.items():
        ledger.metrics.append([MetricPoint(behavior, REWARD, 100 * i, 1.0, value) for i, value in enumerate(series, 1)])
    ledger.move(RunState.SUCCEEDED)
    pack_metrics(database)


@pytest.mark.parametrize(
    ("text", "behavior", "key", "which"),
    [
        ("reward", None, "Environment/Cumulative Reward", "last"),
        ("Walker:Losses/Value Loss@min", "Walker", "Losses/Value Loss", "min"),
        ("a@max", None, "a", "max"),
    ],
)
def test_a_metric_is_named_with_behavior_and_extreme(text: str, behavior: str | None, key: str, which: str) -> None:
    found = listed(text)

    assert (found.behavior, found.key, found.which) == (behavior, key, which)


@pytest.mark.parametrize("text", ["", "a@best", ":a", "a@", "a:b:c", "\x00"])
def test_what_is_no_metric_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a metric"):
        listed(text)


def test_runs_are_sorted_by_the_newest_highest_or_lowest_value_and_those_without_come_last(database: Database) -> None:
    measured(database, "a", Walker=[5.0, 9.0, 1.0])
    measured(database, "b", Walker=[2.0, 3.0, 4.0])
    measured(database, "c", Walker=[8.0, float("nan"), 3.0], Other=[0.5])
    measured(database, "infinite", Walker=[float("nan")])
    make_run(database, name="none")

    def sorted_by(metric: str, *, descending: bool = True) -> tuple[list[str], set[str]]:
        names = read(database, metric, descending=descending)
        number = 0 if metric == "nothing" else 1 if metric.startswith("Other") else 3
        return names[:number], {*names[number:]}

    others = {"infinite", "none"}
    assert sorted_by(REWARD) == (["b", "c", "a"], others)
    assert sorted_by(REWARD, descending=False) == (["a", "c", "b"], others)
    assert sorted_by(f"{REWARD}@max") == (["a", "c", "b"], others)
    assert sorted_by(f"{REWARD}@min", descending=False) == (["c", "a", "b"], others)
    assert sorted_by(f"Walker:{REWARD}@min", descending=False) == (["a", "b", "c"], others)
    assert sorted_by(f"Other:{REWARD}") == (["c"], {"a", "b", *others})
    assert sorted_by("nothing") == ([], {"a", "b", "c", *others})
    assert read(database, REWARD, conditions=(Condition("name", Operator.EQ, "a"),)) == ["a"]


def test_ties_and_changing_pages_neither_skip_nor_repeat_a_run(database: Database) -> None:
    for number in range(7):
        measured(database, f"run-{number}", Walker=[float(number // 3)])

    assert read(database, REWARD, limit=2) == [f"run-{number}" for number in reversed(range(7))]
    assert read(database, REWARD, limit=3, descending=False) == [f"run-{number}" for number in range(7)]


@pytest.mark.long
def test_a_page_of_ten_thousand_runs_takes_few_statements_and_little_time(database: Database) -> None:
    draw = random.Random(0)
    keys = [REWARD, "Environment/Episode Length", *(f"Losses/{number}" for number in range(3))]
    now = time.time()
    with database.write() as session:
        for start in range(0, 10_000, 2_000):
            ids = [f"run_{number:05d}" for number in range(start, start + 2_000)]
            common = {"kind": "train", "state": "SUCCEEDED", "config": {}, "seed": 0, "tags": []}
            session.execute(
                insert(Run), [{**common, "id": i, "name": i, "created_at": now, "stored_updated_at": now} for i in ids]
            )
            values = [(i, key, draw.random()) for i in ids for key in keys]
            session.execute(
                insert(LatestMetric),
                [
                    {"run_id": i, "behavior": "Walker", "key": key, "step": 1, "value": value, "at": now}
                    | {"highest": value + 1, "lowest": value - 1, "extremes_step": 1}
                    for i, key, value in values
                ],
            )
    wanted = [listed(REWARD), listed(f"{REWARD}@max"), listed("Environment/Episode Length")]
    times = []

    with selected(database) as executed:
        for _ in range(5):
            began = time.process_time()
            with database.read() as session:
                page = RunRepository(session).list(ListQuery(BY_METRIC, limit=100), values_by_run(wanted[1]))
                found = MetricRepository(session).listed([run.id for run in page.items], wanted)
            times.append(time.process_time() - began)

    assert len(executed) / 5 <= 3
    assert len(found) == 100
    ordered = [values[wanted[1]] or 0 for values in found.values()]
    assert ordered == sorted(ordered, reverse=True)
    assert min(times) < 0.5, "a walk through all metrics of all runs takes longer"


def test_over_http_values_are_named_as_asked_and_pages_are_bound_to_the_metric(world: World) -> None:
    for name, values in {"first": [1.0, 5.0], "second": [2.0, 3.0]}.items():
        trainer = world.claim(world.create(name=f"listed-{name}", tags=["listed"])["id"]).start()
        trainer.measure(REWARD, values)
        trainer.finish()
    JobLoop([packing_job(world.services.database)], 0.0).tick()
    world.create(name="listed-none", tags=["listed"])

    def get(**query: Any) -> Any:
        return world.http.get("/v1/runs", params={"filter": "tags = listed", **query})

    plain = get().json()["runs"]
    page = get(metrics=[f"{REWARD}@max", REWARD, "no"], order_by="metric desc", page_size=1).json()
    rest = {"metrics": [f"{REWARD}@max", REWARD], "order_by": "metric desc", "page_token": page["next_page_token"]}

    assert [run["metrics"] for run in plain] == [{}, {}, {}]
    assert [(run["name"], run["metrics"]) for run in page["runs"]] == [
        ("listed-first", {f"{REWARD}@max": 5.0, REWARD: 5.0, "no": None})
    ]
    assert [run["name"] for run in get(**rest).json()["runs"]] == ["listed-second", "listed-none"], "none is hidden"
    assert get(**{**rest, "metrics": [REWARD]}).json()["code"] == "invalid_page_token"
    assert get(order_by="metric desc").json()["code"] == "invalid_query"
    assert get(metrics="reward@best").json()["code"] == "invalid_query"
    assert get(metrics=["x"] * 21).status_code == 422
