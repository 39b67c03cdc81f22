"""`ludus run diff RUN RUN...`: the differences of runs in configuration, results, and fingerprints."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ludus.cli.client import connected
from ludus.cli.options import json_option
from ludus.cli.render import echo, number, print_json, print_table
from ludus.client import Client
from ludus.schemas import RunListed

MISSING = "-"


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--all", "everything", is_flag=True, help="Show metrics and fingerprints that are equal, too.")
@json_option
@connected
def diff(client: Client, *, runs: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show how RUNs differ: in their resolved configurations, their newest metrics, and their fingerprints.

    The fingerprint is that of the newest attempt: release and commit of Ludus, libraries, hardware; and the names and
    versions of the simulators.
    """
    comparison = client.runs.compare(runs)
    found = comparison.runs
    if len(runs) < 2:
        raise click.UsageError("name two runs or more")
    configuration = {each.path: each.values for each in comparison.differing}
    metrics = _by_key(
        [{f"{m.behavior} {m.key}".strip(): m.value for m in client.metrics.list(run.id)} for run in found]
    )
    fingerprints = _by_key([_fingerprint(client, run) for run in found])
    if not everything:
        metrics, fingerprints = (
            {key: values for key, values in each.items() if any(value != values[0] for value in values)}
            for each in (metrics, fingerprints)
        )
    if as_json:
        plain = [{"id": run.id, "name": run.name, "state": run.state, "step": run.step} for run in found]
        print_json({"runs": plain, "config": configuration, "metrics": metrics, "fingerprint": fingerprints})
        return
    distinct = len({run.name for run in found}) == len(found)
    names = [run.name if distinct else run.id for run in found]
    rows = [(field, *(getattr(run, field) for run in found)) for field in ("id", "state", "stop_reason")]
    print_table(["run", *names], [*rows, ("steps", *(number(run.step) for run in found))])
    for title, differing, write in (
        ("configuration", configuration, _shown),
        ("metric", metrics, number),
        ("fingerprint", fingerprints, _shown),
    ):
        echo()
        if differing:
            rows = [
                (key, *(MISSING if each is None else write(each) for each in values))
                for key, values in differing.items()
            ]
            print_table([title, *names], rows)
        else:
            echo(f"{title}: no difference")


def _by_key(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the values of all records by key; None where a record does not have it."""
    return {key: tuple(each.get(key) for each in records) for key in sorted({key for each in records for key in each})}


def _fingerprint(client: Client, run: RunListed) -> dict[str, Any]:
    """Return the software and hardware of the newest attempt, and the kinds of simulators that have played."""
    attempts = client.runs.attempts(run.id)
    found = dict((attempts[-1].fingerprint or {}) if attempts else {})
    kinds = Counter(each.client for each in client.simulators.list(run.id) if each.client)
    return found | ({"simulators": sorted(kinds)} if kinds else {})


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
