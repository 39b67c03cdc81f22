"""The operational metrics: named by Prometheus' rules, without ids, and documented one by one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from server.kit.db.database import Database
from server.kit.http.telemetry import HttpTelemetry
from server.kit.scheduling import SchedulingSettings
from server.kit.telemetry import ControllerTelemetry, GatewayTelemetry
from server.workers.fleet.collector import FleetMetrics
from tests.factories import RecordingWakeUp
from worker.host.telemetry import WorkerTelemetry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text()
LABELS = {"state", "outcome", "reason", "pool", "demand", "method", "route", "status", "call", "version"}
"""What is told apart: kinds and outcomes, of which there are few; of demands those with the most runs."""
UNITS = ("_seconds", "_bytes")


@pytest.fixture
def metrics(database: Database) -> dict[str, Metric]:
    """Return the metrics of all roles by name, as they are exposed, each counted once so that labels show."""
    http = HttpTelemetry(FleetMetrics(database, RecordingWakeUp(), SchedulingSettings(), 10.0))
    http.observe("GET", "/v1/runs", 200, 0.1)
    gateway, controller, worker = GatewayTelemetry(), ControllerTelemetry(), WorkerTelemetry()
    gateway.calls.labels("join", "ok").observe(0.1)
    controller.rounds.labels("ok").observe(0.1)
    controller.attempts.labels("succeeded").observe(0.1)
    worker.heartbeats.labels("ok").observe(0.1)
    return dict(collected(http.registry, gateway.registry, controller.registry, worker.registry))


def collected(*registries: CollectorRegistry) -> Iterator[tuple[str, Metric]]:
    for registry in registries:
        for metric in registry.collect():
            if not metric.name.startswith(("process_", "python_")):
                yield metric.name + ("_total" if metric.type == "counter" else ""), metric


def test_names_follow_prometheus_rules(metrics: dict[str, Metric]) -> None:
    """As `promtool check metrics` and https://prometheus.io/docs/practices/naming/ have it."""
    for name, metric in metrics.items():
        assert re.fullmatch(r"ludus_[a-z0-9]+(_[a-z0-9]+)*", name), name
        assert metric.documentation.strip(), f"{name} has no help"
        assert (metric.type == "counter") == name.endswith("_total"), name
        assert not name.removesuffix("_total").endswith(("_count", "_sum", "_bucket", "_gauge", "_counter")), name
        assert metric.type != "histogram" or name.endswith(UNITS), f"{name} says no unit"
        base = re.compile(r"_(milliseconds|ms|minutes|hours|days|kilobytes|megabytes|mb|percent)(_|$)")
        assert not base.search(name), f"{name} is not in base units"


def test_labels_are_kinds_and_never_ids(metrics: dict[str, Metric]) -> None:
    for name, metric in metrics.items():
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} <= LABELS, (name, sample.labels)


def test_every_metric_is_documented_with_its_type_and_labels(metrics: dict[str, Metric]) -> None:
    rows = re.findall(r"^\| `(ludus_\w+)` \| (\w+) \|([^|]*)\|", PAGE, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    told = {
        name: (metric.type, {label for sample in metric.samples for label in sample.labels} - {"le"})
        for name, metric in metrics.items()
    }

    assert documented == told


def test_the_documented_rules_name_metrics_that_exist(metrics: dict[str, Metric]) -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    rules = [rule for block in blocks for group in block.get("groups", ()) for rule in group["rules"]]
    known = set(metrics) | {f"{name}_bucket" for name, metric in metrics.items() if metric.type == "histogram"}

    assert len(rules) >= 5
    for rule in rules:
        named = set(re.findall(r"ludus_\w+", rule["expr"]))
        assert named, rule
        assert named <= known, rule
        assert rule["annotations"]["summary"]
