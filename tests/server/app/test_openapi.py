"""The description of the API: reviewed as a golden file, and kept by the server whatever is sent to it.

After a change on purpose: make api
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.pytest._test_builder import FeedbackSources, build_operation_test
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from server.app.app import ROUTERS, create_app
from server.app.services import Services
from server.kit.settings import Settings
from tests.conftest import NEEDS_POSTGRESQL, postgresql_database
from tests.factories import RecordingWakeUp
from tests.server.app.routes import EXPERIMENT
from tests.server.app.world import CARTPOLE, World, open_world
from tests.server.demonstrations.recordings import stored
from tests.server.ladders.played import make_match, rate_all

GOLDEN = Path(__file__).parents[2] / "golden" / "openapi.json"
NAMES: dict[str, tuple[Any, ...]] = {
    "run": ("finished", "waiting", "nobody"),
    "checkpoint": ("latest",),
    "attempt": (1,),
    "name": ("base", "cartpole"),
    "experiment": ("our-experiment",),
    "ladder": ("finished", "league"),
}
"""Values that lead to something, for half of the generated paths."""


@cache
def description() -> str:
    """Return the API's description as text."""
    with tempfile.TemporaryDirectory() as home:
        chosen = Settings(home=Path(home))
        schema = create_app(chosen, Services.build(chosen, wake_up=RecordingWakeUp())).openapi()
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def test_the_description_is_the_reviewed_one() -> None:
    assert description() == GOLDEN.read_text(), "changed on purpose? run: make api"


def test_every_reference_leads_to_a_schema() -> None:
    named = set(re.findall(r'"#/components/schemas/(\w+)"', description()))

    schemas = json.loads(description())["components"]["schemas"]
    assert named == schemas.keys()
    # Two models of one name are told apart by their modules, and generators drop both.
    assert not {name for name in named if "__" in name}


@pytest.mark.long
def test_every_route_is_documented() -> None:
    operations = [
        (f"{method} {path}", operation)
        for path, item in json.loads(description())["paths"].items()
        for method, operation in item.items()
    ]

    assert len(operations) == sum(len(router.routes) for router in ROUTERS)
    for name, operation in operations:
        assert operation["summary"], name
        assert operation["description"], name
        assert {"401", "403", "422", "500", "503"} <= set(operation["responses"]), name
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (name, parameter["name"])


@pytest.fixture(scope="module")
def populated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An API on SQLite with something of everything."""
    with populate(tmp_path_factory.mktemp("fuzz")) as world:
        yield world


@pytest.fixture(scope="module")
def populated_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same on PostgreSQL."""
    with (
        postgresql_database() as url,
        populate(tmp_path_factory.mktemp("fuzz"), url.render_as_string(hide_password=False)) as world,
    ):
        yield world


@contextmanager
def populate(folder: Path, url: str | None = None) -> Iterator[World]:
    with open_world(folder, url=url) as world:
        trainer = world.claim(world.create(name="finished", tags=["ci"])["id"]).start()
        trainer.measure("Environment/Cumulative Reward", [1.0, 2.0])
        trainer.save(100, {"CartPole.onnx": b"model"}, folder)
        trainer.write_log("trainer.log", b"hello\n", folder)
        trainer.ledger.simulators.connected("one", number=0, collector=0, behaviors=["CartPole"])
        trainer.ledger.simulators.plays("one", ["CartPole"], 1)
        trainer.ledger.matches.append([make_match(1), make_match(2, "draw", snapshot=1)])
        trainer.finish()
        rate_all(world.services.database)
        world.create(name="waiting")
        world.http.post("/v1/ladders", json={"name": "league"}).raise_for_status()
        world.http.post("/v1/experiments", json=EXPERIMENT).raise_for_status()
        for name in ("ann", "bob"):
            world.http.post("/v1/ladders/league/players", json={"name": name, "kind": "human"}).raise_for_status()
        world.http.post("/v1/configs/base/versions", json={"config": CARTPOLE}).raise_for_status()
        NAMES["demonstration"] = (stored(world, folder)["id"],)
        yield world


DESCRIPTION = json.loads(GOLDEN.read_text())
ENDLESS = {"/v1/events:stream"}
"""A request that is in order gets an answer without an end: tests/server/runs/events/test_project_streams.py."""
OPERATIONS = [(path, method) for path, item in DESCRIPTION["paths"].items() for method in item if path not in ENDLESS]
EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
every_operation = pytest.mark.parametrize(
    ("path", "method"), OPERATIONS, ids=[f"{method.upper()} {path}" for path, method in OPERATIONS]
)


@cache
def sendable(*, corners: bool) -> OpenApiSchema:
    """Return the description as requests are made from it."""
    schema = schemathesis.openapi.from_dict(DESCRIPTION)
    schema.config.phases.coverage.enabled = schema.config.phases.examples.enabled = corners
    return schema


def send_examples(world: World, path: str, method: str, *, examples: int, corners: bool) -> None:
    """Send so many random requests, and each corner of what the description allows and forbids.

    `schema.parametrize` would make them for every test while the tests are collected, whether or not they will run.
    """
    schema = sendable(corners=corners)

    @settings(EXAMPLES, max_examples=examples)
    def send(case: schemathesis.Case) -> None:
        check(case, world)

    build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=send,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()


@pytest.mark.long
@every_operation
def test_what_is_sent_is_answered_as_described(populated: World, path: str, method: str) -> None:
    send_examples(populated, path, method, examples=3, corners=False)


@pytest.mark.long
@every_operation
def test_whatever_is_sent_is_answered_as_described(populated: World, path: str, method: str) -> None:
    send_examples(populated, path, method, examples=8, corners=True)


@pytest.mark.postgres
@NEEDS_POSTGRESQL
@every_operation
def test_the_same_on_postgresql(populated_postgresql: World, path: str, method: str) -> None:
    send_examples(populated_postgresql, path, method, examples=8, corners=True)


def check(case: schemathesis.Case, world: World) -> None:
    """Filters, page tokens and configurations have rules beyond their schema: what fits the schema may be refused."""
    if case.meta is None or case.meta.generation.mode is GenerationMode.POSITIVE:
        aim(case)
    case.call_and_validate(base_url=world.server, timeout=30, excluded_checks=[positive_data_acceptance])


def aim(case: schemathesis.Case) -> None:
    """Lead half of the generated requests to something that exists, and let none wait long."""
    parameters: dict[str, Any] = case.path_parameters or {}
    for name, values in NAMES.items():
        if name in parameters and len(str(parameters[name])) % 2:
            parameters[name] = values[len(str(parameters[name])) % len(values)]
    query: dict[str, Any] = case.query or {}
    if "wait" in query:
        query["timeout"] = 0.05
    if "event" in case.path and parameters.get("run") == "waiting":
        parameters["run"] = "finished"
