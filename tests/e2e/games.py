"""Unity games for whole-stack tests: `ludus unity` with a player of the protocol in place of a build."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.stack import LUDUS, LudusUp, environment

ROOT = Path(__file__).resolve().parents[2]


def write_build(folder: Path, *behaviors: dict[str, Any]) -> Path:
    """Write a build whose game has these behaviors; return what `--env` wants."""
    build = folder / "game.x86_64"
    player = [sys.executable, "-m", "tests.unity.player", "--behaviors", json.dumps(behaviors)]
    build.write_text(f'#!/bin/sh\ncd {shlex.quote(str(ROOT))}\nexec {shlex.join(player)} "$@"\n')
    build.chmod(0o755)
    return build.with_suffix("")


class Games:
    """`ludus unity`, and the builds that it launches."""

    def __init__(
        self,
        stack: LudusUp,
        run: str,
        folder: Path,
        *behaviors: dict[str, Any],
        count: int = 1,
        collect: str | None = "there",
    ) -> None:
        """`collect` None: where the command finds best."""
        self.folder = folder
        build = write_build(folder, *behaviors)
        self.output = (folder / "unity.out").open("ab")
        self.process = subprocess.Popen(
            [
                *(*LUDUS, "unity", run, "--server", stack.gateway, "--env", str(build)),
                *(
                    "--num-envs",
                    str(count),
                    "--no-graphics",
                    *(() if collect is None else ("--collect", collect)),
                    "--logs",
                    str(folder / "logs"),
                    "--base-port",
                    "25005",
                ),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )

    @property
    def pids(self) -> set[int]:
        """Process ids of the games."""
        found = set()
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # or it is a zombie, which is one of those
                if "tests.unity.player" in child.cmdline():
                    found.add(child.pid)
        return found

    @property
    def said(self) -> str:
        """Everything that `ludus unity` has printed."""
        return (self.folder / "unity.out").read_text()

    def summaries(self) -> list[dict[str, Any]]:
        """What the games printed at their ends."""
        found = []
        for path in sorted((self.folder / "logs").glob("Player-*.out")):
            found += [json.loads(line) for line in path.read_text().splitlines() if re.match(r'\{"ending"', line)]
        return found

    def kill(self) -> None:
        """kill -9 everything."""
        if self.process.poll() is None:
            for process in [
                psutil.Process(self.process.pid),
                *psutil.Process(self.process.pid).children(recursive=True),
            ]:
                process.kill()
        self.process.wait()
        self.output.close()
