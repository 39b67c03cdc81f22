"""The dashboards for Grafana, which `make docs` writes as JSON.

A dashboard is a list of panels. A panel names its metrics in PromQL, or, for one run, its fields of the api's answers:
Prometheus has no series of single runs. `tests/architecture/test_monitoring.py` checks that every metric, label and field
exists. Every api process reports the same numbers from the database, so these are read with `max`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.rules import OBJECTIVES

HEIGHT: Final = 8
NUMBERS: Final = frozenset({"value", "number", "step", "steps_per_second"})
"""Fields of the api's answers that are numbers; those that end in `at` are times."""
EXPORTER = "postgres_exporter"
"""https://github.com/prometheus-community/postgres_exporter: panels of its metrics are marked with its name."""


@dataclass(frozen=True)
class Panel:
    """One panel: `queries` are PromQL by legend, or, with a `url`, columns by their selector in the api's answer."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    """Of 24."""
    text: str = ""
    url: str = ""
    root: str = ""
    """Selector of the rows in the answer: JSONata."""


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Return the 50th and the 99th percentile of a histogram."""
    name = f" {{{{{by}}}}}" if by else ""
    rate = f"sum by (le{', ' + by if by else ''}) (rate({metric}_bucket[$__rate_interval]))"
    return {f"p{share * 100:g}{name}": f"histogram_quantile({share}, {rate})" for share in (0.5, 0.99)}


def _rate(metric: str, by: str) -> dict[str, str]:
    return {f"{{{{{by}}}}}": f"sum by ({by}) (rate({metric}[$__rate_interval]))"}


FLEET: Final = (
    Panel("Runs", {"{{state}}": "max by (state) (ludus_runs) > 0"}, text="Runs by state."),
    Panel("Waiting runs", {"runs": "sum(max by (demand) (ludus_queue_runs))"}, kind="stat", width=4),
    Panel("Longest wait", {"seconds": "max(ludus_queue_oldest_seconds)"}, "s", kind="stat", width=4),
    Panel("Slots", {"{{state}}": "max by (state) (ludus_workers)"}),
    Panel("Agent steps", {"steps/s": "rate(max(ludus_agent_steps_total)[5m:30s])"}),
    Panel("Simulators", {"connected": "max(ludus_simulators_connected)"}),
    Panel("Attempts that ended", {"{{outcome}}": "max by (outcome) (increase(ludus_attempts_ended_total[1h]))"}),
    Panel("Queue to first action, recovery", _quantiles("ludus_worker_start_seconds", "cause"), "s"),
    Panel("Oldest heartbeat", {"seconds": "max(ludus_heartbeat_oldest_seconds)"}, "s"),
    Panel(
        "Sessions of simulators that ended",
        {
            **_rate("ludus_worker_sessions_total", "outcome"),
            "lost with their worker": "sum(rate(ludus_controller_sessions_lost_total[$__rate_interval]))",
        },
        "ops",
    ),
    Panel("Checkpoints", {"stored/s": "sum(rate(ludus_worker_checkpoints_total[$__rate_interval]))"}, "ops"),
    Panel("Checkpoints, bytes", {"bytes/s": "sum(rate(ludus_worker_checkpoint_bytes_total[$__rate_interval]))"}, "Bps"),
    Panel("Storing a checkpoint", _quantiles("ludus_worker_checkpoint_publish_seconds"), "s"),
    Panel(
        "Error budgets left",
        {"{{slo}}": "1 - ludus_slo:errors:ratio_rate3d / ludus_slo:budget:ratio"},
        "percentunit",
        text="1: nothing of the budget was used in three days. Below 0: more than the objective allows.\n"
        + "\n".join(f"{one.name}: {one.share:.1%}. {one.text}" for one in OBJECTIVES),
    ),
    Panel("Leases that ran out", {"leases": "sum(increase(ludus_controller_leases_expired_total[1h]))"}),
    Panel("Webhook messages", {"pending": "max(ludus_webhook_deliveries_pending)"}),
)
DATABASE: Final = (
    Panel("Database answers", {"up": "min(ludus_database_up)"}, kind="stat", width=4),
    Panel("Connections of the api", {"{{instance}} {{pool}}": "ludus_database_connections_used"}, width=10),
    Panel(
        "Share of its pools",
        {"{{pool}}": "max by (pool) (ludus_database_connections_used / ludus_database_connections_limit)"},
        "percentunit",
        width=10,
    ),
    Panel(
        "Heartbeats by outcome",
        _rate("ludus_worker_heartbeat_seconds_count", "outcome"),
        "ops",
        text="Each is a transaction of a supervisor.",
    ),
    Panel("Heartbeats, duration", _quantiles("ludus_worker_heartbeat_seconds"), "s"),
    Panel(
        "Rounds of the controller's jobs by outcome", _rate("ludus_controller_round_seconds_count", "outcome"), "ops"
    ),
    Panel("Rounds, duration", _quantiles("ludus_controller_round_seconds", "job_name"), "s"),
    Panel(
        "Joins by outcome",
        {"{{outcome}}": 'sum by (outcome) (rate(ludus_gateway_call_seconds_count{call="join"}[$__rate_interval]))'},
        "ops",
    ),
    Panel("Requests, duration", _quantiles("ludus_http_request_seconds"), "s"),
    Panel(
        "Transactions",
        {
            "commits {{datname}}": "rate(pg_stat_database_xact_commit[$__rate_interval])",
            "rollbacks {{datname}}": "rate(pg_stat_database_xact_rollback[$__rate_interval])",
        },
        "ops",
        text=EXPORTER,
    ),
    Panel(
        "Server's connections",
        {"{{state}}": "sum by (state) (pg_stat_activity_count)", "limit": "max(pg_settings_max_connections)"},
        text=EXPORTER,
    ),
    Panel("Size", {"{{datname}}": "pg_database_size_bytes"}, "bytes", text=EXPORTER),
    Panel(
        "Read from memory",
        {
            "{{datname}}": "rate(pg_stat_database_blks_hit[$__rate_interval]) / (rate(pg_stat_database_blks_hit[$__rate_interval]) + rate(pg_stat_database_blks_read[$__rate_interval]))"
        },
        "percentunit",
        text=EXPORTER,
    ),
    Panel("Locks", {"{{mode}}": "sum by (mode) (pg_locks_count)"}, text=EXPORTER),
    Panel("Dead rows", {"{{relname}}": "topk(5, pg_stat_user_tables_n_dead_tup)"}, text=EXPORTER),
)
GATEWAY: Final = (
    Panel(
        "Calls",
        {"{{call}} {{outcome}}": "sum by (call, outcome) (rate(ludus_gateway_call_seconds_count[$__rate_interval]))"},
        "ops",
        width=12,
    ),
    Panel("Calls, duration", _quantiles("ludus_gateway_call_seconds", "call"), "s", width=12),
    Panel("Relayed streams", {"{{instance}}": "ludus_gateway_relayed_streams"}),
    Panel("Simulators", {"connected": "max(ludus_simulators_connected)"}),
    Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job=~".*ludus.*"}'}, "bytes"),
)
SERIES: Final = 'series.($b := behavior; $zip(times, values).{"at": $[0], "behavior": $b, "value": $[1]})'
"""The points of all behaviors, from the columns in which the api answers."""
RUN: Final = (
    Panel(
        "State",
        {"state": "state", "step": "step", "steps_per_second": "steps/s", "stop_detail": "why"},
        kind="table",
        width=12,
        url="/v1/runs/${run}",
    ),
    Panel(
        "Attempts",
        {
            "number": "number",
            "worker_id": "worker",
            "started_at": "started",
            "ended_at": "ended",
            "outcome": "outcome",
            "detail": "detail",
        },
        kind="table",
        width=12,
        url="/v1/runs/${run}/attempts",
        root="attempts",
    ),
    *(
        Panel(
            title,
            {"at": "at", "behavior": "behavior", "value": "value"},
            url=f"/v1/runs/${{run}}/metrics/series?key={key.replace(' ', '%20').replace('/', '%2F')}",
            root=SERIES,
        )
        for title, key in (
            ("Reward", "Environment/Cumulative Reward"),
            ("Episode length", "Environment/Episode Length"),
            ("Entropy", "Policy/Entropy"),
        )
    ),
    Panel(
        "Events",
        {"at": "at", "level": "level", "type": "event", "message": "message"},
        kind="table",
        width=24,
        url="/v1/runs/${run}/events",
        root="events",
    ),
    Panel(
        "Trace",
        {"trace": '{ span.ludus.run.id = "${run}" }'},
        kind="traces",
        width=24,
        text="Spans of the run, where traces are on (LUDUS_TELEMETRY__OTLP_ENDPOINT).",
    ),
)
DASHBOARDS: Final[Mapping[str, tuple[str, Sequence[Panel]]]] = {
    "fleet": ("Ludus: fleet", FLEET),
    "database": ("Ludus: database", DATABASE),
    "gateway": ("Ludus: gateway", GATEWAY),
    "run": ("Ludus: one run", RUN),
}

SOURCES: Final = {
    "prometheus": ("prometheus", "Prometheus"),
    "api": ("yesoreyeram-infinity-datasource", "Ludus API"),
    "tempo": ("tempo", "Tempo"),
}
"""Variables of the dashboards that name data sources: their type and label."""


def dashboard(name: str) -> str:
    """Return a dashboard in Grafana's JSON, to import or to provision."""
    title, panels = DASHBOARDS[name]
    used = [source for source in SOURCES if any(_source(panel) == source for panel in panels)]
    variables: list[dict[str, Any]] = [
        {"name": source, "type": "datasource", "query": SOURCES[source][0], "label": SOURCES[source][1]}
        for source in used
    ]
    if name == "run":
        variables.append({"name": "run", "type": "textbox", "label": "Run (id or name)", "query": ""})
    body = {
        "uid": f"ludus-{name}",
        "title": title,
        "tags": ["ludus"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": list(_placed(panels)),
    }
    return json.dumps(body, indent=1) + "\n"


def _source(panel: Panel) -> str:
    return "tempo" if panel.kind == "traces" else "api" if panel.url else "prometheus"


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """Place panels in rows of 24 columns, and yield them in Grafana's form."""
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > 24:
            x, y = 0, y + HEIGHT
        source = _source(panel)
        datasource = {"type": SOURCES[source][0], "uid": f"${{{source}}}"}
        queries = [panel.queries] if panel.url else [{legend: query} for legend, query in panel.queries.items()]
        yield {
            "id": number,
            "title": f"{panel.title} ({EXPORTER})" if panel.text == EXPORTER else panel.title,
            "description": f"From {EXPORTER}, not from Ludus." if panel.text == EXPORTER else panel.text,
            "type": "table" if panel.kind == "traces" else panel.kind,
            "datasource": datasource,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "options": {},
            "targets": [
                {"refId": chr(ord("A") + index), "datasource": datasource, **_target(panel, source, query)}
                for index, query in enumerate(queries)
            ],
        }
        x += panel.width


def _target(panel: Panel, source: str, queries: Mapping[str, str]) -> dict[str, Any]:
    """Return a query as the data source's plugin takes it."""
    if source == "api":
        columns = [
            {
                "selector": field,
                "text": text,
                "type": "timestamp" if field.endswith("at") else "number" if field in NUMBERS else "string",
            }
            for field, text in queries.items()
        ]
        form = {"type": "json", "source": "url", "parser": "backend", "format": panel.kind, "filters": []}
        return {
            **form,
            "url": panel.url,
            "url_options": {"method": "GET", "data": ""},
            "root_selector": panel.root,
            "columns": columns,
        }
    ((legend, query),) = queries.items()
    if source == "tempo":
        return {"queryType": "traceql", "query": query, "limit": 100, "tableType": "spans"}
    return {"expr": query, "legendFormat": legend, "range": panel.kind != "stat", "instant": panel.kind == "stat"}
