"""`ludus run verify-resume`: does a run's newest checkpoint hold all that its next updates depend on?"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option
from ludus.cli.render import echo, number, print_json, print_table
from ludus.client import Client
from ludus.schemas import Checkpoint, Run

STATE = ("state.json", "state.safetensors")
"""The files of a checkpoint that a run goes on from."""


@click.command("verify-resume")
@click.argument("run")
@click.option("--checkpoint", default="latest", show_default=True, help="Which of the run's checkpoints.")
@click.option("--updates", type=click.IntRange(min=2), default=4, show_default=True, help="Updates to learn in all.")
@json_option
@connected
def verify_resume(client: Client, *, run: str, checkpoint: str, updates: int, as_json: bool) -> None:
    """Learn from a checkpoint of RUN, in one go and with a cut in the middle, and compare the bits.

    The checkpoint is downloaded and learns here, on the CPU, from made-up experience; the run does not notice. Needs
    the worker's code and torch. Exit code 6 if something differs.
    """
    _require_worker()
    found = client.get_run(run)
    newest = client.get_checkpoint(run, checkpoint)
    with TemporaryDirectory(prefix="ludus-verify-") as text:
        folder = Path(text)
        rows = _compare(client, found, newest, folder, updates)
    if as_json:
        print_json({"run": found.id, "checkpoint": newest.id, "step": newest.step, "updates": updates, "rows": rows})
    else:
        echo(f"Checkpoint {newest.id} of run {found.id}, step {number(newest.step)}, {updates} updates:")
        print_table(["behavior", "entry", "values", "restored", "same bits", ""], [_line(row) for row in rows])
    if not all(row["good"] for row in rows):
        raise Failure("a run that goes on from this checkpoint would not end as if it had not been cut", Exit.UNMET)


def _require_worker() -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "worker")):
        message = "`ludus run verify-resume` learns on this machine: it needs the extra `worker`. Run "
        raise Failure(message + "pip install '.[worker]' in Ludus' repository, or call it on a worker.", Exit.USAGE)


def _compare(client: Client, run: Run, checkpoint: Checkpoint, folder: Path, updates: int) -> list[dict[str, Any]]:
    """Download what is needed and let the worker's code compare."""
    for name in STATE:
        client.download(run.id, checkpoint.id, name, folder / name)
    config = folder / "run.json"
    config.write_text(json.dumps(run.config), encoding="utf-8")
    command = [sys.executable, "-m", "worker.verification", str(folder), str(config)]
    command += ["--seed", str(run.seed), "--updates", str(updates)]
    for each in sorted(set(_demonstrations(run.config or {}))):
        target = client.download_demonstration(each, folder / each)
        command += ["--demonstration", f"{each}={target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1} or not done.stdout:
        raise Failure(f"It can't be verified: {done.stderr.strip()}", Exit.REFUSED)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _demonstrations(section: Any) -> Iterator[str]:
    """Yield the ids of all demonstrations that a configuration names."""
    if isinstance(section, Mapping):
        for key, value in section.items():
            if key == "demonstrations" and isinstance(value, list):
                yield from value
            else:
                yield from _demonstrations(value)
    elif isinstance(section, list):
        for value in section:
            yield from _demonstrations(value)


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    words = {True: "yes", False: "NO", None: "-"}
    where = ", ".join(row["differs"][:3]) + (" ..." if len(row["differs"]) > 3 else "")
    restored, exact = words[row["restored"]], words[row["exact"]]
    return (row["behavior"] or "(run)", row["entry"], number(row["entries"]), restored, exact, where or row["note"])
