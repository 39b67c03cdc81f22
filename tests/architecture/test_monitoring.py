"""The operational metrics: named by Prometheus' rules, without ids, and documented one by one.

Rules and dashboards name only metrics, labels and fields that exist.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from server.kit.db.database import Database
from server.kit.http.telemetry import HttpTelemetry
from server.kit.scheduling import SchedulingSettings
from server.kit.telemetry import ControllerTelemetry, GatewayTelemetry
from server.workers.fleet import FleetMetrics
from tests.factories import RecordingWakeUp
from worker.host.telemetry import WorkerTelemetry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
RULES = ROOT / "deploy" / "prometheus" / "ludus.rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LABELS = {
    "state",
    "outcome",
    "job_name",
    "reason",
    "pool",
    "demand",
    "method",
    "route",
    "status",
    "call",
    "version",
    "cause",
}
"""What is told apart: kinds and outcomes, of which there are few; of demands those with the most runs."""
UNITS = ("_seconds", "_bytes")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")


@pytest.fixture
def metrics(database: Database) -> dict[str, Metric]:
    """Return the metrics of all roles by name, as they are exposed, each counted once so that labels show."""
    http = HttpTelemetry(FleetMetrics(database, RecordingWakeUp(), SchedulingSettings(), 10.0))
    http.observe("GET", "/v1/runs", 200, 0.1)
    gateway, controller, worker = GatewayTelemetry(), ControllerTelemetry(), WorkerTelemetry()
    gateway.calls.labels("join", "ok").observe(0.1)
    controller.rounds.labels("leases", "ok").observe(0.1)
    controller.attempts.labels("succeeded").observe(0.1)
    worker.heartbeats.labels("ok").observe(0.1)
    worker.starts.labels("queued").observe(0.1)
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


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def unknown_names(expression: str, metrics: dict[str, Metric]) -> set[str]:
    """Return the metrics, labels and bounds of buckets that a PromQL expression names and no role exposes."""
    known: dict[str, set[str]] = {rule["record"]: {"slo"} for rule in rules() if "record" in rule}
    for sample in (sample for metric in metrics.values() for sample in metric.samples):
        known.setdefault(sample.name, {"le"}).update(sample.labels, (f"le={sample.labels.get('le')}",))
    named = re.findall(r"\bludus_[\w:]+", expression)
    unknown = {name for name in named if name not in known}
    for name, selector in re.findall(r"\b(ludus_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*[!=]~?\s*"([^"]*)"', selector):
            given = f"le={value}" if label == "le" else label  # which values other labels have depends on what happens
            unknown |= {f"{name}{{{given}}}"} - {f"{name}{{{each}}}" for each in known.get(name, set())}
    grouped = {label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.findall(r"\w+", group)}
    return unknown | (grouped - {label for name in named for label in known.get(name, set())} if named else set())


def test_rules_name_metrics_and_labels_that_exist(metrics: dict[str, Metric]) -> None:
    assert len(rules()) >= 30
    for rule in rules():
        assert "ludus_" in rule["expr"] or rule["expr"].startswith("vector("), rule
        assert not unknown_names(rule["expr"], metrics), rule
        assert rule["annotations"]["summary"] if "alert" in rule else rule["labels"]["slo"], rule
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {"LudusDatabaseDown", "LudusBudgetBurnsFast", "LudusBudgetBurnsSlowly"} < alerts
    assert set(re.findall(r"^\| `(\w+)` \| [\d.]+% \|", PAGE, re.MULTILINE)) == {
        rule["labels"]["slo"] for rule in rules() if "record" in rule
    }


def burning(slo: str, name: str) -> dict[str, Any]:
    """Return what promtool expects of an alert of a budget."""
    rule = next(rule for rule in rules() if rule.get("alert") == name)
    return {
        "exp_labels": {"slo": slo, **rule["labels"]},
        "exp_annotations": {"summary": rule["annotations"]["summary"].replace("{{ $labels.slo }}", slo)},
    }


def starts(cause: str, seconds: str, every: str, good: str) -> dict[str, str]:
    """Return the counts of starts with a cause, and of those within some seconds."""
    name = "ludus_worker_start_seconds"
    return {
        f'{name}_count{{cause="{cause}"}}': every,
        f'{name}_bucket{{cause="{cause}",le="{seconds}"}}': good,
    }


ENDED, LOST = (f'ludus_worker_sessions_total{{outcome="{outcome}"}}' for outcome in ("ended", "lost"))
BY_CONTROLLER = "ludus_controller_sessions_lost_total"
FAST, SLOW = "LudusBudgetBurnsFast", "LudusBudgetBurnsSlowly"
HOUR: list[tuple[str, dict[str, str], str | None]] = [
    ("nine of ten starts are late", starts("queued", "60.0", "0+10x70", "0+1x70"), "start"),
    ("nine of ten recoveries are late", starts("interrupted", "30.0", "0+10x70", "0+1x70"), "recovery"),
    ("one of ten recoveries is late", starts("interrupted", "30.0", "0+10x70", "0+9x70"), None),
    (
        "recoveries within a minute are late, though starts are not",
        starts("interrupted", "60.0", "0+10x70", "0+10x70") | starts("interrupted", "30.0", "0+10x70", "0+1x70"),
        "recovery",
    ),
    ("workers lose 2% of the sessions", {ENDED: "0+98x70", LOST: "0+2x70"}, "sessions"),
    ("the controller finds 2% of the sessions lost", {ENDED: "0+98x70", BY_CONTROLLER: "0+2x70"}, "sessions"),
    ("each loses 1%", {ENDED: "0+98x70", LOST: "0+1x70", BY_CONTROLLER: "0+1x70"}, "sessions"),
    ("all workers died", {BY_CONTROLLER: "0+1x70"}, "sessions"),
    ("no session is lost, and none ever was", {ENDED: "0+100x70"}, None),
    ("1% of the sessions is lost: too much for six hours", {ENDED: "0+99x70", LOST: "0+1x70"}, "sessions"),
    ("half a percent of the sessions is lost", {ENDED: "0+199x70", LOST: "0+1x70", BY_CONTROLLER: "0+0x70"}, None),
    ("nothing happens", {ENDED: "7+0x70", LOST: "3+0x70", BY_CONTROLLER: "2+0x70"}, None),
    ("no session is lost any more for half an hour", {ENDED: "0+98x70", LOST: "0+2x34 68+0x36"}, None),
]
"""What happens for an hour, in counts of each minute, and the objective whose budget burns fast."""


def promtool_tests(folder: Path, tests: list[dict[str, Any]], interval: str = "5m") -> None:
    """Run unit tests of the rules."""
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": tests}))
    tested = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def series_of(counts: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": series, "values": values} for series, values in counts.items()]


@needs_promtool
@pytest.mark.parametrize(("counts", "slo"), [pytest.param(*case, id=name) for name, *case in HOUR])
def test_a_budget_that_burns_fast_calls(tmp_path: Path, counts: dict[str, str], slo: str | None) -> None:
    expected = [] if slo is None else [burning(slo, FAST)]
    at = [{"eval_time": "70m", "alertname": FAST, "exp_alerts": expected}]

    promtool_tests(tmp_path, [{"interval": "1m", "input_series": series_of(counts), "alert_rule_test": at}])


@needs_promtool
def test_slots_that_are_silent_call_after_two_minutes_and_not_once_others_have_followed(tmp_path: Path) -> None:
    """Two apis tell of them; one has read the database a moment before the other."""
    rule = next(rule for rule in rules() if rule.get("alert") == "LudusSlotsSilent")
    counts = {
        'ludus_workers_silent{instance="a"}': "0x4 2x9 0x9",
        'ludus_workers_silent{instance="b"}': "0x5 2x9 0x9",
    }
    silent = {"exp_annotations": rule["annotations"]}
    at = [
        {"eval_time": minute, "alertname": "LudusSlotsSilent", "exp_alerts": alerts}
        for minute, alerts in (("4m", []), ("6m", []), ("8m", [silent]), ("14m", [silent]), ("17m", []))
    ]

    tests = [{"interval": "1m", "input_series": series_of(counts), "alert_rule_test": at}]
    promtool_tests(tmp_path, tests, interval="1m")


@needs_promtool
@pytest.mark.slow
def test_a_budget_that_burns_slowly_makes_a_ticket(tmp_path: Path) -> None:
    """For three days 2% of the answers are late, 6% of the recoveries, and 0.2% of the sessions are lost."""
    requests = 'ludus_http_request_seconds_{}{{route="/v1/runs"{}}}'
    cases = {
        "api": {requests.format("count", ""): "0+100x900", requests.format("bucket", ',le="0.5"'): "0+98x900"},
        "recovery": starts("interrupted", "30.0", "0+100x900", "0+94x900"),
        "sessions": {ENDED: "0+998x900", BY_CONTROLLER: "0+2x900"},
    }
    at = {
        slo: [
            {"eval_time": "3d", "alertname": FAST, "exp_alerts": []},
            {"eval_time": "3d", "alertname": SLOW, "exp_alerts": [burning(slo, SLOW)]},
        ]
        for slo in cases
    }

    promtool_tests(
        tmp_path,
        [
            {"interval": "5m", "input_series": series_of(counts), "alert_rule_test": at[slo]}
            for slo, counts in cases.items()
        ],
    )


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_dashboards_name_metrics_labels_and_fields_that_exist(file: Path, metrics: dict[str, Metric]) -> None:
    document = json.loads((ROOT / "tests" / "golden" / "openapi.json").read_text())
    board = json.loads(file.read_text())
    assert (board["uid"], board["title"].startswith("Ludus")) == (f"ludus-{file.stem}", True)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    expressions = []
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"].strip("${}") in variables
            if "expr" in target:
                expressions.append(target["expr"])
                assert not unknown_names(target["expr"], metrics), panel["title"]
                foreign = set(re.findall(r"\bpg_\w+", target["expr"]))
                assert bool(foreign) == ("(postgres_exporter)" in panel["title"]), panel["title"]
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    assert label in LABELS | {"slo", "instance"} or foreign, (panel["title"], label)
            elif "url" in target:
                path, _, query = target["url"].replace("${run}", "{run}").partition("?")
                fields = answered(document, path)
                if target["root_selector"] not in {"", *fields}:
                    assert target["root_selector"].startswith("series.")
                    assert (
                        set(re.findall(r"\b(?:times|values|behavior)\b", target["root_selector"])) <= fields["series"]
                    )
                    assert f"| `{parse_qs(query)['key'][0]}` |" in (ROOT / "docs" / "metrics.md").read_text()
                else:
                    rows = fields[target["root_selector"]] if target["root_selector"] else set(fields)
                    assert {column["selector"] for column in target["columns"]} <= rows
            else:
                assert "span.ludus.run.id" in target["query"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


@needs_promtool
def test_the_queries_of_dashboards_are_promql(tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "5m")
        for file in DASHBOARDS
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
        if "expr" in target
    ]
    records = [{"record": f"query:number{number}", "expr": each} for number, each in enumerate(expressions)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    checked = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(records) > 30


def answered(document: dict[str, Any], path: str) -> dict[str, set[str]]:
    """Return the fields of the answer to a GET, each with the fields of its elements if it is a list of objects."""
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]

    def properties(one: dict[str, Any]) -> dict[str, Any]:
        return document["components"]["schemas"].get(str(one.get("$ref")).rpartition("/")[2], {}).get("properties", {})

    return {name: set(properties(field.get("items", {}))) for name, field in properties(schema).items()}
