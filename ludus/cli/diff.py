"""`ludus run diff A B`: the differences of two runs in configuration, results, and fingerprints."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ludus.cli.client import connected
from ludus.cli.options import json_option
from ludus.cli.render import echo, number, print_json, print_table
from ludus.client import Client
from ludus.schemas import Run

Pair = tuple[Any, Any]
MISSING = "-"


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--all", "everything", is_flag=True, help="Show metrics and fingerprints that are equal, too.")
@json_option
@connected
def diff(client: Client, *, first: str, second: str, everything: bool, as_json: bool) -> None:
    """Show how runs A and B differ: in their resolved configurations, their newest metrics, and their fingerprints.

    The fingerprint is that of the newest attempt: release and commit of Ludus, libraries, hardware; and the names and
    versions of the simulators.
    """
    runs = (client.runs.get(first), client.runs.get(second))
    configuration = {
        path: pair
        for path, pair in _pairs(*(dict(_flat(run.config or {})) for run in runs)).items()
        if pair[0] != pair[1]
    }
    metrics = _pairs(*({f"{m.behavior} {m.key}".strip(): m.value for m in client.metrics.list(run.id)} for run in runs))
    fingerprints = _pairs(*(_fingerprint(client, run) for run in runs))
    if not everything:
        metrics, fingerprints = (
            {key: pair for key, pair in each.items() if pair[0] != pair[1]} for each in (metrics, fingerprints)
        )
    if as_json:
        plain = [{"id": run.id, "name": run.name, "state": run.state, "step": run.step} for run in runs]
        print_json({"runs": plain, "config": configuration, "metrics": metrics, "fingerprint": fingerprints})
        return
    names = [run.name if runs[0].name != runs[1].name else run.id for run in runs]
    rows = [(field, *(getattr(run, field) for run in runs)) for field in ("id", "state", "stop_reason")]
    print_table(["run", *names], [*rows, ("steps", *(number(run.step) for run in runs))])
    for title, found, write in (
        ("configuration", configuration, _shown),
        ("metric", metrics, number),
        ("fingerprint", fingerprints, _shown),
    ):
        echo()
        if found:
            rows = [(key, *(MISSING if each is None else write(each) for each in pair)) for key, pair in found.items()]
            print_table([title, *names], rows)
        else:
            echo(f"{title}: no difference")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each leaf. Lists are leaves: their order matters."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    return {key: (first.get(key), second.get(key)) for key in sorted({*first, *second})}


def _fingerprint(client: Client, run: Run) -> dict[str, Any]:
    """Return the software and hardware of the newest attempt, and the kinds of simulators that have played."""
    attempts = client.runs.attempts(run.id)
    found = dict((attempts[-1].fingerprint or {}) if attempts else {})
    kinds = Counter(each.client for each in client.simulators.list(run.id) if each.client)
    return found | ({"simulators": sorted(kinds)} if kinds else {})


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
