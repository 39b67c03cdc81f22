"""A real `ludus up` in a temporary folder, and the processes below it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from ludus.client import Client
from ludus.schemas import Run
from server.kit.processes import MARK, marked
from tests.waiting import eventually

LUDUS = [sys.executable, "-m", "ludus.cli"]


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a newcomer's shell: no settings of Ludus, one thread for numerical libraries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUDUS_")}
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


class LudusUp:
    """One `ludus up`."""

    def __init__(self, home: Path, *options: str, **settings: str) -> None:
        self.home = home
        ready = home / "ready.json"
        home.mkdir(parents=True, exist_ok=True)
        ready.unlink(missing_ok=True)
        self.output = (home / "up.out").open("ab")
        given = ["--home", str(home), "--port", "0", "--gateway-port", "0", "--ready-file", str(ready)]
        self.process = subprocess.Popen(
            [*LUDUS, "up", *given, *options],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=environment(**settings),
            cwd=home,
        )

        def announced() -> dict[str, Any] | None:
            assert self.process.poll() is None, f"ludus up ended: {(home / 'up.out').read_text()}"
            answer: dict[str, Any] | None = json.loads(ready.read_text()) if ready.exists() else None
            return answer

        addresses = eventually(announced, "ludus up is ready", 60.0)
        self.api: str = addresses["api"]
        self.gateway: str = addresses["gateway"]
        self.websocket: str = addresses["websocket"]
        self.mark = psutil.Process(self.children()["api"].pid).environ()[MARK]

    def client(self) -> Client:
        """Return a client of the HTTP API."""
        return Client(self.api)

    def children(self) -> dict[str, psutil.Process]:
        """Return the processes of the roles by name."""
        names = {"server": "api", "gateway": "gateway", "controller": "controller", "worker": "worker"}
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.NoSuchProcess:  # it died a moment ago
                continue
            for word, name in names.items():
                if word in words:
                    found[name] = child
        return found

    def processes(self, module: str) -> list[psutil.Process]:
        """Return the live processes below this stack that run `python -m MODULE`."""
        found = []
        for pid in marked(self.mark):
            try:
                process = psutil.Process(pid)
                if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def stop(self) -> int:
        """Press Ctrl-C, wait for the end, and return the exit code."""
        if self.process.poll() is None:
            self.interrupt()
        code = self.process.wait(60)
        self.output.close()
        return code


class Player:
    """A simulator in a process of its own."""

    def __init__(
        self,
        stack: LudusUp,
        run: str,
        *options: str,
        environments: int = 4,
        game: str = "gymnasium:CartPole-v1",
    ) -> None:
        self.process = subprocess.Popen(
            [
                *(*LUDUS, "simulate", game, "--run", run, "--server", stack.gateway),
                *("--count", "1", "--envs", str(environments), *options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        """kill -9 the whole group: nobody says goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def cartpole(max_steps: int = 100_000, **settings: Any) -> dict[str, Any]:
    """Return a configuration that learns quickly and says much."""
    behavior: dict[str, Any] = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 512, "num_epoch": 2},
        "network_settings": {"hidden_units": 32},
        "max_steps": max_steps,
        "time_horizon": 32,
        "summary_freq": 500,
        "checkpoint_interval": 1000,
        "keep_checkpoints": 3,
    }
    return {"behaviors": {"CartPole": {**behavior, **settings}}, "seed": 1, "simulators": {"grace_seconds": 60}}


def wait_for_step(client: Client, run: Run, step: int, seconds: float = 60.0) -> Run:
    """Wait until a run has come to a step."""

    def far_enough() -> Run | None:
        now = client.runs.get(run.id)
        assert now.state not in {"FAILED", "CANCELLED"}, f"{now.state}: {now.stop_reason} {now.stop_detail}"
        return now if now.step >= step else None

    return eventually(far_enough, f"step {step}", seconds)
