"""Ctrl-C ends the command without a traceback, however early it comes; so does SIGTERM, where a loop runs."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from ludus.cli.exits import sigterm_interrupts

INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
"""
"""`sitecustomize`: what a user does while a module is imported."""


@pytest.mark.parametrize(
    ("module", "code"),
    [("ludus.cli", -signal.SIGINT), ("click", -signal.SIGINT), ("ludus.threads", -signal.SIGINT), ("ludus.cli.run", 1)],
)
def test_an_interrupt_of_an_import_ends_the_command_without_a_traceback(tmp_path: Path, module: str, code: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(module=module))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        ["env", "--default-signal=INT", sys.executable, "-m", "ludus", "run", "list"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, b"Traceback" in ended.stderr) == (code, False), ended.stderr


def test_a_command_whose_shell_ignores_interrupts_goes_on_ignoring_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(module="click"))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        ["env", "--ignore-signal=INT", sys.executable, "-m", "ludus", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout[:6]) == (0, b"ludus,"), ended.stderr


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_loop_that_gets_sigterm_in_a_callback_of_a_connection_ends_its_work_and_is_left(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    cleared = []
    here, there = socket.socketpair()

    class Interrupted(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            signal.raise_signal(signal.SIGTERM)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(Interrupted, sock=here)
        there.send(b"x")
        try:
            await loop.create_future()
        finally:
            cleared.append(transport.is_closing())
            transport.close()

    with there, sigterm_interrupts(), pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(work())

    assert cleared == [False], "the work was not told, or its connection was closed by the loop"
    assert not caplog.records
