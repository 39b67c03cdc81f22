"""`ludus up` as an operator meets it: what it says when it can't start, and how it starts again what dies."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from server.kit.processes import marked
from tests.e2e.stack import LUDUS, LudusUp, environment
from tests.waiting import eventually, never

ANY_PORTS = ("--port", "0", "--gateway-port", "0")


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """Return an `xdg-open`, which is how a desktop opens an address, that notes the address in `opened` beside it."""
    browser = tmp_path / "bin" / "xdg-open"
    browser.parent.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$1" > {browser.parent}/opened\n')
    browser.chmod(0o755)
    return browser


@pytest.fixture
def up(tmp_path: Path, browser: Path) -> Iterator[LudusUp]:
    up = LudusUp(tmp_path, "--open", PATH=f"{browser.parent}:{os.environ['PATH']}")
    yield up
    up.interrupt()
    up.stop()
    assert marked(up.mark) == []


def refused(home: Path, *options: str, **settings: str) -> str:
    """Run a `ludus up` that can't start, and return what it says."""
    done = subprocess.run(
        [*LUDUS, "up", "--home", str(home), *options],
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.e2e
@pytest.mark.faults
def test_when_it_is_ready_everything_answers_the_pages_are_opened_and_one_interrupt_stops_it_in_bounded_time(
    up: LudusUp, browser: Path
) -> None:
    host, _, port = up.gateway.rpartition(":")
    opened = browser.with_name("opened")

    assert httpx2.get(f"{up.api}/readyz").status_code == 200
    socket.create_connection((host, int(port)), timeout=5).close()
    logs = {path.name for path in (up.home / "logs").glob("*.log")}
    assert logs == {"migrate.log", "api.log", "gateway.log", "controller.log", "worker.log"}
    eventually(lambda: opened.exists() and opened.read_text() == f"{up.api}\n", "the browser opens the pages")
    assert up.api in (up.home / "up.out").read_text()
    assert "<title>" in httpx2.get(up.api).text

    before = time.monotonic()
    assert up.stop() == 0
    assert time.monotonic() - before < 15
    assert marked(up.mark) == []


@pytest.mark.e2e
@pytest.mark.faults
@pytest.mark.xdist_group("stack")
def test_a_request_that_arrives_while_the_api_is_dead_waits_for_the_new_one(stack: LudusUp) -> None:
    killed = stack.children()["api"]

    killed.kill()
    answer = httpx2.get(f"{stack.api}/healthz", timeout=60)

    assert answer.status_code == 200
    assert stack.children()["api"].pid != killed.pid


@pytest.mark.e2e
@pytest.mark.faults
def test_a_second_interrupt_does_not_wait_for_a_process_that_hangs(up: LudusUp) -> None:
    up.children()["api"].send_signal(signal.SIGSTOP)

    up.interrupt()
    never(lambda: up.process.poll() is not None, "one interrupt gives nobody time", 1)
    up.interrupt()

    assert up.process.wait(5) == 0


@pytest.mark.e2e
@pytest.mark.faults
@pytest.mark.xdist_group("stack")
def test_a_second_one_in_the_same_home_is_refused_by_name(stack: LudusUp) -> None:
    said = refused(stack.home, *ANY_PORTS)

    assert f"{stack.home} is in use by another `ludus up` (process {stack.process.pid})" in said
    assert "--home" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "variable"),
    [
        (("--gateway-port", "0", "--port"), "LUDUS_API__PORT"),
        (("--port", "0", "--gateway-port"), "LUDUS_GATEWAY__PORT"),
    ],
)
def test_a_port_in_use_is_told_in_one_sentence_with_its_setting(
    options: tuple[str, ...], variable: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        said = refused(tmp_path, *options, port)

    assert len(said.strip().splitlines()) == 1
    assert f"Port {port} on 127.0.0.1 is already in use" in said
    assert variable in said


@pytest.mark.long
def test_a_setting_that_makes_no_sense_is_told_by_its_variable(tmp_path: Path) -> None:
    assert "LUDUS_WORKER__SLOTS" in refused(tmp_path, LUDUS_WORKER__SLOTS="none")


@pytest.mark.long
def test_a_home_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "is a file" in refused(tmp_path / "file")
