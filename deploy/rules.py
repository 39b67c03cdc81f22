"""The rules for Prometheus: alerts, and objectives whose error budgets are watched. `make docs` writes the file."""

from dataclasses import dataclass
from typing import Any, Final

import yaml

HEAD = "# Written by `make docs` from deploy/rules.py; don't edit.\n"
WINDOWS: Final = ("5m", "30m", "1h", "6h", "3d")


@dataclass(frozen=True)
class Objective:
    """A service level objective: `share` of the events are good."""

    name: str
    share: float
    text: str
    bad: str
    """Rate of bad events, in PromQL; `WINDOW` stands for the range."""
    all: str
    """Rate of all events."""


def _slow(metric: str, selector: str, seconds: str) -> tuple[str, str]:
    """Return the rates of observations above a bucket of a histogram, and of all observations."""
    every = f"sum(rate({metric}_count{{{selector}}}[WINDOW]))"
    return f'({every} - sum(rate({metric}_bucket{{{selector},le="{seconds}"}}[WINDOW])))', every


LOST = '((sum(rate(ludus_worker_sessions_total{outcome="lost"}[WINDOW])) or vector(0)) + (sum(rate(ludus_controller_sessions_lost_total[WINDOW])) or vector(0)))'
"""The worker counts what ends while it lives, the controller what a dead worker had."""
ENDED = '(sum(rate(ludus_worker_sessions_total{outcome="ended"}[WINDOW])) or vector(0))'
"""Nothing where no worker is left to be asked: what the controller counts is the whole then."""
FILES = 'route!~".*/(file|files/.*|logs/.*)|/v1/(demonstrations|checkpoints)"'
"""Without uploads and downloads, which last as long as the client's network makes them."""
OBJECTIVES: Final = (
    Objective(
        "start",
        0.95,
        "A queued run computes its first action within a minute, without the time in which only a simulator was missing.",
        *_slow("ludus_worker_start_seconds", 'cause="queued"', "60.0"),
    ),
    Objective(
        "recovery",
        0.95,
        "A run whose attempt was interrupted computes actions again within 30 seconds of the last heartbeat.",
        *_slow("ludus_worker_start_seconds", 'cause="interrupted"', "30.0"),
    ),
    Objective("api", 0.99, "The api answers within half a second.", *_slow("ludus_http_request_seconds", FILES, "0.5")),
    Objective(
        "sessions",
        0.999,
        "A simulator's session ends because the simulator or the run ends it, not by a failure of the server.",
        LOST,
        f"({ENDED} + {LOST})",
    ),
)

ALERTS: Final = (
    ("LudusDatabaseDown", "max(ludus_database_up) == 0", "1m", "The api cannot reach the database."),
    (
        "LudusBrokerDown",
        "max(ludus_broker_up) == 0",
        "2m",
        "The api cannot reach the broker: idle workers are not woken for waiting runs.",
    ),
    (
        "LudusConnectionsScarce",
        "max by (pool) (ludus_database_connections_used / ludus_database_connections_limit) > 0.8",
        "5m",
        "Connections with the database run out: count them as docs/operations.md does, or use PgBouncer.",
    ),
    (
        "LudusRunsNotTaken",
        'max(ludus_queue_oldest_seconds) > 900 and max(ludus_workers{state="idle"}) > 0',
        "5m",
        "Runs wait although workers are idle: look at the broker and the controller.",
    ),
    (
        "LudusNoWorkers",
        "max(ludus_queue_runs) > 0 and sum(max by (state) (ludus_workers)) == 0",
        "5m",
        "Runs wait and no worker is alive: start one, or look at the autoscaler.",
    ),
    (
        "LudusSlotsSilent",
        "max(ludus_workers_silent) > 0",
        "2m",
        "A worker slot gives no sign of life and nothing has followed it: `ludus worker list` names it and its host.",
    ),
    (
        "LudusLeasesLost",
        'increase(max(ludus_attempts_ended_total{outcome="lease_expired"})[30m:1m]) > 2',
        None,
        "Workers lose their leases: look at their hosts and at the database's latency.",
    ),
    (
        "LudusHeartbeatsLate",
        "max(ludus_heartbeat_oldest_seconds) > 6",
        "1m",
        "A supervisor renews its lease late (leases last 10 s unless set otherwise).",
    ),
    (
        "LudusApiSlow",
        'histogram_quantile(0.99, sum by (le) (rate(ludus_http_request_seconds_bucket{route="/v1/runs",method="GET"}[5m]))) > 0.5',
        "10m",
        "Listing runs takes more than half a second.",
    ),
    (
        "LudusApiErrors",
        'sum(rate(ludus_http_requests_total{status=~"5.."}[5m])) > 0.1',
        "5m",
        "The api answers with internal errors.",
    ),
    (
        "LudusWebhooksLate",
        "max(ludus_webhook_oldest_due_seconds) > 120",
        "5m",
        "Webhook messages are due and not sent: look at the controller.",
    ),
    (
        "LudusWebhookDisabled",
        'max(ludus_webhooks_disabled{reason="failing"}) > 0',
        None,
        "A webhook was disabled because its receiver failed repeatedly.",
    ),
)
"""Name, expression, time that it must hold, and what it means for a person."""

BURNS: Final = (
    ("LudusBudgetBurnsFast", "page", (("1h", "5m", 14.4), ("6h", "30m", 6)), "is used up within days"),
    ("LudusBudgetBurnsSlowly", "ticket", (("3d", "6h", 1),), "will not last for its 30 days"),
)
"""Alert, severity, and pairs of a long and a short window with a rate: Google's SRE workbook, chapter 5, table 5-8. 14.4
uses up 2% of a month's budget in an hour, 6 uses up 5% in six hours, 1 uses up 10% in three days. The short window ends
the alert soon after the cause has gone.
"""


def rules() -> str:
    """Return the rule file for Prometheus."""
    return HEAD + yaml.safe_dump({"groups": _groups()}, sort_keys=False, width=10_000)


def prometheus_rule() -> str:
    """Return the same rules as the resource that the Prometheus operator reads."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ludus"},
        "spec": {"groups": _groups()},
    }
    return HEAD + yaml.safe_dump(resource, sort_keys=False, width=10_000)


def _groups() -> list[dict[str, Any]]:
    alerts = [
        {
            "alert": name,
            "expr": expression,
            **({} if since is None else {"for": since}),
            "annotations": {"summary": text},
        }
        for name, expression, since, text in ALERTS
    ]
    recorded = [
        {"record": "ludus_slo:budget:ratio", "labels": {"slo": one.name}, "expr": f"vector({1 - one.share:.4g})"}
        for one in OBJECTIVES
    ]
    recorded += [
        {
            "record": f"ludus_slo:errors:ratio_rate{window}",
            "labels": {"slo": one.name},
            "expr": f"{one.bad} / {one.all}".replace("WINDOW", window),
        }
        for one in OBJECTIVES
        for window in WINDOWS
    ]
    burns = [
        {
            "alert": name,
            "expr": " or ".join(f"({_burns(long, rate)} and {_burns(short, rate)})" for long, short, rate in pairs),
            "labels": {"severity": severity},
            "annotations": {
                "summary": f"The error budget of the objective {{{{ $labels.slo }}}} {text}: docs/monitoring.md#objectives."
            },
        }
        for name, severity, pairs, text in BURNS
    ]
    groups = [("ludus", alerts), ("ludus-slo", [*recorded, *burns])]
    return [{"name": name, "rules": each} for name, each in groups]


def _burns(window: str, rate: float) -> str:
    return f"ludus_slo:errors:ratio_rate{window} > {rate:g} * ludus_slo:budget:ratio"
