"""Runs listed by metrics, compared, renamed, tagged, deleted and mirrored from the command line."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.exits import INTERRUPTED, Exit
from ludus.schemas.states import RunState
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.metrics.points import MetricPoint
from tests.factories import pack_metrics
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import CARTPOLE, Trainer, World
from tests.waiting import eventually

REWARD = "Environment/Cumulative Reward"
FINGERPRINT = {"release": "0.1.0", "commit": "abc", "torch": "2.13.0", "cpu": "EPYC", "gpus": ["H200"]}


def trained(world: World, name: str, values: list[float], config: Any = CARTPOLE, **fields: Any) -> Trainer:
    trainer = world.claim(world.create(config, name=name, **fields)["id"]).start()
    trainer.measure(REWARD, values)
    trainer.finish()
    return trainer


def names(listed: str, column: int = 1) -> list[str]:
    return [line.split()[column] for line in listed.splitlines()[1:]]


def test_runs_are_listed_with_metrics_and_sorted_by_one(cli: Invoke, world: World) -> None:
    trained(world, "steady", [4.0, 5.0, 6.0], tags=["sweep"])
    trained(world, "lucky", [1.0, 90.0, 3.0], tags=["sweep"])
    world.create(name="waiting", tags=["sweep"])
    pack_metrics(world.services.database)  # the controller does: lists are sorted by packed metrics
    listed = ["run", "list", "--tag", "sweep"]

    table = cli(*listed, "--metric", "reward", "--metric", "CartPole:reward@max").stdout.splitlines()
    by_last = cli(*listed, "--metric", "reward", "--order-by", "reward desc").stdout
    by_best = cli(*listed, "--metric", "reward", "--order-by", "reward@max desc").stdout
    by_name = cli(*listed, "--metric", "reward", "--order-by", "name").stdout

    assert "REWARD" in table[0]
    assert "CARTPOLE:REWARD@MAX" in table[0]
    assert next(line.split()[6:8] for line in table if "lucky" in line) == ["3", "90"]
    assert names(by_last) == ["steady", "lucky", "waiting"]
    assert names(by_best) == ["lucky", "steady", "waiting"]
    assert names(by_name) == ["lucky", "steady", "waiting"]
    assert as_json(cli(*listed, "--metric", "reward@min", "--order-by", "reward@min", "--json"))[0]["metrics"] == {
        f"{REWARD}@min": 1.0
    }


@pytest.mark.parametrize("arguments", [["--metric", "reward@best"], ["--order-by", "no_such_field"]])
def test_a_wrong_metric_or_order_is_one_sentence(cli: Invoke, arguments: list[str]) -> None:
    refused = cli("run", "list", *arguments)

    assert refused.exit_code == Exit.REFUSED
    assert refused.stderr.startswith("Error: ")


def test_diff_shows_what_differs_and_nothing_else(cli: Invoke, world: World) -> None:
    other = {"behaviors": {"CartPole": {**CARTPOLE["behaviors"]["CartPole"], "max_steps": 99, "summary_freq": 10}}}
    first = trained(world, "diff-a", [1.0], {**CARTPOLE, "seed": 1})
    second = world.create({**other, "seed": 1}, name="diff-b")["id"]
    claim = RunQueue(world.services.database).claim("host/1/1", 60, hint=second, fingerprint=FINGERPRINT)
    assert claim is not None
    ledger = AttemptLedger(world.services.database, claim)
    ledger.move(RunState.RUNNING)
    ledger.simulators.connected("one", number=0, collector=0, client="ludus-python/0.1.0 (Linux x86_64, Python 3.11)")

    found = as_json(cli("run", "diff", first.run_id, second, "--json"))
    table = cli("run", "diff", "diff-a", "diff-b").stdout

    assert found["config"] == {
        "behaviors.CartPole.max_steps": [10000, 99],
        "behaviors.CartPole.summary_freq": [1000, 10],
    }
    assert found["metrics"] == {f"CartPole {REWARD}": [1.0, None]}
    assert found["fingerprint"]["gpus"] == [None, ["H200"]]
    assert found["fingerprint"]["simulators"] == [None, ["ludus-python/0.1.0 (Linux x86_64, Python 3.11)"]]
    assert "behaviors.CartPole.max_steps" in table
    assert "time_horizon" not in table
    assert cli("run", "diff", "diff-a", "diff-a").stdout.count("no difference") == 3
    assert "name two runs or more" in cli("run", "diff", "diff-a").stderr
    world.create({**CARTPOLE, "seed": 2}, name="diff-c")
    assert as_json(cli("run", "diff", "diff-a", "diff-b", "diff-c", "--json"))["config"]["seed"] == [1, 1, 2]
    assert "trained on" in cli("run", "show", "diff-b").stdout
    assert cli("run", "diff", "diff-a", "nobody").exit_code == Exit.REFUSED


def test_a_run_is_renamed_tagged_and_deleted(cli: Invoke, world: World) -> None:
    run = trained(world, "typo", [1.0], tags=["ci"]).run_id
    older = trained(world, "kept", [1.0]).run_id

    assert cli("run", "rename", "typo", "kept").stdout == f"{run} kept\n"
    assert cli("run", "tag", run, "best", "v2", "--remove", "ci").stdout == "best, v2\n"
    assert cli("run", "tag", run).exit_code == Exit.USAGE
    assert cli("run", "delete", run, input="n\n").exit_code == 1
    assert world.http.get(f"/v1/runs/{run}").status_code == 200

    deleted = cli("run", "delete", run, "--yes")
    assert deleted.stdout == f"{run} deleted\n"
    assert world.http.get(f"/v1/runs/{run}").status_code == 404
    assert world.http.get(f"/v1/runs/{older}").status_code == 200, "the other run of that name stays"


def test_what_needs_a_run_is_named_when_it_is_to_be_deleted(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="champ")["id"]).start()
    trainer.save(100, {"CartPole.onnx": b"x"}, tmp_path)
    trainer.finish()
    cli("checkpoint", "alias", "set", "tidy-champion", "champ/latest")

    refused = cli("run", "delete", "champ", "--yes")

    assert refused.exit_code == Exit.REFUSED
    assert "the alias tidy-champion stands for its checkpoint" in refused.stderr


def test_a_run_that_has_ended_is_mirrored_as_a_whole(cli: Invoke, world: World, tmp_path: Path) -> None:
    run = trained(world, "mirrored", [1.0, 2.0, 3.0]).run_id
    target = tmp_path / "results" / "mirrored"

    mirrored = cli("run", "mirror", run, str(target))
    again = cli("run", "mirror", run, str(target))

    assert (mirrored.exit_code, again.exit_code) == (Exit.OK, Exit.OK)
    assert points(target) == {REWARD: [(100, 1.0), (200, 2.0), (300, 3.0)]}
    assert (target / "configuration.yaml").exists()


def test_what_a_mirror_prints_has_lines_and_times_that_do_not_depend_on_when_it_was_started(
    cli: Invoke, world: World, tmp_path: Path
) -> None:
    trainer = world.claim(world.create(name="printed")["id"]).start()
    lines = ["Hyperparameters for behavior name CartPole: \n\ttrainer_type:\tppo"]
    trainer.ledger.event("lessons_began", " ".join(lines), data={"log_lines": lines})
    summarise(trainer, 100)

    first = cli("run", "mirror", "printed", str(tmp_path / "printed"), "--once")
    time.sleep(0.5)  # allow: sleep, because the subject is the time between two summaries
    cli("run", "tag", "printed", "seen")  # the run is "updated" now
    summarise(trainer, 200)
    second = cli("run", "mirror", "printed", str(tmp_path / "printed"), "--once")

    assert "name CartPole: \n\ttrainer_type:\tppo\n" in first.stdout
    assert elapsed(second.stdout) - elapsed(first.stdout) > 0.4


def elapsed(printed: str) -> float:
    return float(re.findall(r"Time Elapsed: ([\d.]+) s", printed)[-1])


def summarise(trainer: Trainer, step: int) -> None:
    trainer.ledger.metrics.append(
        [MetricPoint("CartPole", "Performance/Agent Steps per Second", step, time.time(), 1.0)]
    )


@pytest.mark.long
def test_a_mirror_follows_a_live_run_and_goes_on_after_an_interruption(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="live")["id"]).start()
    trainer.measure(REWARD, [1.0])
    command = [sys.executable, "-m", "ludus.cli", "run", "mirror", trainer.run_id, str(tmp_path / "live")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env={**os.environ, "LUDUS_SERVER": world.server}, stderr=subprocess.DEVNULL)

    def until(count: int, process: subprocess.Popen[bytes]) -> None:
        def shown() -> bool:
            assert process.poll() is None
            return len(points(tmp_path / "live").get(REWARD, ())) >= count

        eventually(shown, f"{count} points")

    first = start()
    until(1, first)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == INTERRUPTED
    trainer.measure(REWARD, [2.0], first=200)
    second = start()
    until(2, second)
    trainer.measure(REWARD, [3.0], first=300)
    trainer.finish(RunState.CANCELLED)

    assert second.wait(60) == Exit.RUN_CANCELLED
    assert points(tmp_path / "live") == {REWARD: [(100, 1.0), (200, 2.0), (300, 3.0)]}


def test_a_folder_of_another_run_is_not_written_into(cli: Invoke, world: World, tmp_path: Path) -> None:
    first, second = (trained(world, name, [1.0]).run_id for name in ("mine", "yours"))
    cli("run", "mirror", first, str(tmp_path / "results"))
    before = (tmp_path / "results/run_logs/ludus.json").read_text()

    refused = cli("run", "mirror", second, str(tmp_path / "results"))

    assert refused.exit_code == Exit.USAGE
    assert first in refused.stderr
    assert (tmp_path / "results/run_logs/ludus.json").read_text() == before


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's event files of the behavior, as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    if not list((folder / "CartPole").glob("events.out.tfevents.*")):
        return {}
    reader = EventAccumulator(str(folder / "CartPole"))
    reader.Reload()
    return {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
