"""Output that cannot be written, or not in the console's encoding, ends no work: processes on real pipes and disks."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.ludus.cli.conftest import Invoke
from tests.server.app.world import CARTPOLE, World
from tests.waiting import eventually

LUDUS = [sys.executable, "-m", "ludus.cli"]
NAMED = {"behaviors": {"Jäger 猫": CARTPOLE["behaviors"]["CartPole"]}}  # type: ignore[index]


def environment(world: World, **more: str) -> dict[str, str]:
    return {**os.environ, "LUDUS_SERVER": world.server, "PYTHONDONTWRITEBYTECODE": "1", **more}


@pytest.fixture
def run(world: World) -> Iterator[str]:
    trainer = world.claim(world.create(NAMED)["id"]).start()
    trainer.measure("Environment/Cumulative Reward", [1.0], behavior="Jäger 猫")
    yield trainer.run_id
    if world.http.get(f"/v1/runs/{trainer.run_id}").json()["state"] == "RUNNING":
        trainer.finish()


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "utf-16"])
def test_no_encoding_of_the_console_ends_a_command_or_changes_json_and_yaml(
    world: World, run: str, encoding: str
) -> None:
    def printed(*arguments: str) -> bytes:
        ended = subprocess.run(
            [*LUDUS, "run", "show", *arguments],
            env=environment(world, PYTHONIOENCODING=encoding),
            capture_output=True,
            check=False,
        )
        assert b"Traceback" not in ended.stderr
        assert ended.returncode == (arguments[0] != run)
        return ended.stdout

    printed(run)
    printed("猫-ü-🤖")
    assert list(json.loads(printed(run, "--json"))["config"]["behaviors"]) == ["Jäger 猫"]
    assert list(yaml.safe_load(printed(run, "--config").decode(encoding))["behaviors"]) == ["Jäger 猫"]


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["watch"], ["watch", "--json"], ["logs", "--follow"]], ids=" ".join)
def test_a_command_that_prints_what_happens_ends_without_a_word_when_its_reader_has_gone(
    world: World, tmp_path: Path, arguments: list[str]
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.write_log("trainer.log", b"first line\n" * 20_000, tmp_path)
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*LUDUS, "run", *arguments[:1], trainer.run_id, *arguments[1:]],
        env=environment(world),
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert os.read(reading, 16)
    os.close(reading)
    # Something happens further on, as in each run that trains.
    numbers = iter(range(10_000))

    def ended() -> bool:
        trainer.ledger.event("noted", f"event {next(numbers)}", level="info", data={})
        return process.poll() is not None

    eventually(ended, "it ends")
    _, words = process.communicate()
    assert (process.returncode, words) == (141, b"")


@pytest.mark.long
def test_an_answer_that_does_not_fit_on_the_disk_is_an_error(world: World, run: str, tmp_path: Path) -> None:
    with (tmp_path / "show.json").open("wb") as file:
        ended = subprocess.run(
            ["prlimit", "--fsize=100:100", *LUDUS, "run", "show", run, "--json"],
            env=environment(world),
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert ended.returncode == 1
    assert b"Error: a part of the output is lost: [Errno 27] File too large" in ended.stderr
    assert b"Traceback" not in ended.stderr


SCRIPT = """
import sys
from ludus.console import lost_output, tolerate
from ludus.logging import configure_logging
import structlog
configure_logging("test", log_format="console")
for _ in range(100):
    print("Jäger 猫 " * 1000)
    structlog.get_logger().info("猫" * 1000)
lost = lost_output()
sys.exit(0 if lost is None else lost.errno)
"""


def worked(**streams: object) -> int:
    """Return what became of a process that prints and logs a lot: the number of the error, 0 without one."""
    return subprocess.run([sys.executable, "-c", SCRIPT], check=False, **streams).returncode  # type: ignore[call-overload,no-any-return]


def test_printing_and_logging_to_a_full_device_end_no_process() -> None:
    with Path("/dev/full").open("wb") as full:
        assert worked(stdout=full, stderr=full) == 28


def test_printing_and_logging_to_closed_descriptors_end_no_process() -> None:
    command = f'"{sys.executable}" -c "$0" >&- 2>&-'

    assert subprocess.run(["sh", "-c", command, SCRIPT], check=False).returncode == 0


def test_printing_and_logging_to_a_terminal_that_is_gone_end_no_process() -> None:
    leader, follower = pty.openpty()
    os.close(leader)
    try:
        assert worked(stdout=follower, stderr=follower) == 5
    finally:
        os.close(follower)


@pytest.mark.long
def test_learn_goes_on_to_its_end_when_its_reader_has_gone(cli: Invoke, world: World, tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(CARTPOLE))
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*LUDUS, "learn", "ppo.yaml", "--remote-env", "--run-id", "piped"],
        cwd=tmp_path,
        env=environment(world),
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    assert os.read(reading, 16)
    os.close(reading)
    runs = eventually(lambda: world.http.get("/v1/runs", params={"filter": "name = piped"}).json()["runs"])
    trainer = world.claim(runs[0]["id"]).start()
    for step in range(100, 1000, 100):
        trainer.measure("Environment/Cumulative Reward", [1.0], first=step)
    trainer.finish()

    assert process.wait(60) == 0
    assert (tmp_path / "results/piped/run_logs/timers.json").exists()
