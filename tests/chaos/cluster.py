"""Every role of a deployment as a process of its own, with two workers, kept running as a service manager would."""

import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import psutil

from ludus.backoff import Backoff
from ludus.child_process import RestartedProcess
from ludus.client import ApiError, Client
from server.embedded.stack import start_command
from server.kit.processes import MARK, marked, sweep
from tests.e2e.stack import LUDUS, environment
from tests.ports import free_port
from tests.waiting import eventually

LEASE_SECONDS = 3.0
SILENCE_SECONDS = 6.0
RESTART_SECONDS = 0.5
WORKERS = ("worker-1", "worker-2")


class Cluster:
    """API, gateway, controller and two workers on one home folder, or on the database and queue that settings name."""

    def __init__(self, home: Path, workers: Mapping[str, Mapping[str, str]] | None = None, **settings: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.mark = secrets.token_hex(8)
        api, gateway = free_port(), free_port()
        self.api, self.gateway = f"http://127.0.0.1:{api}", f"127.0.0.1:{gateway}"
        shared = environment(
            LUDUS_HOME=str(home),
            LUDUS_API__PORT=str(api),
            LUDUS_GATEWAY__PORT=str(gateway),
            LUDUS_GATEWAY__TICKET_KEY=secrets.token_urlsafe(32),
            LUDUS_WORKER__LEASE_SECONDS=f"{LEASE_SECONDS}",
            LUDUS_WORKER__HEARTBEAT_SECONDS="0.5",
            LUDUS_WORKER__SILENCE_SECONDS=f"{SILENCE_SECONDS}",
            LUDUS_CONTROLLER__RESTART_BUDGET="20",
            **settings,
        )
        shared[MARK] = self.mark
        subprocess.run([*LUDUS, "migrate"], env=shared, check=True, stderr=subprocess.DEVNULL, cwd=home)
        commands = {
            "api": "server",
            "gateway": "gateway",
            "controller": "controller",
            **dict.fromkeys(WORKERS, "worker"),
        }
        self._services = {
            name: RestartedProcess(
                partial(start_command, [command], {**shared, **(workers or {}).get(name, {})}, home / f"{name}.log"),
                Backoff(RESTART_SECONDS, RESTART_SECONDS),
            )
            for name, command in commands.items()
        }
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._keep, name="service-manager")
        self._listener.start()
        with self.client() as client:
            eventually(lambda: self._answers(client), "the API answers", 60)

    def _answers(self, client: Client) -> bool:
        try:
            client.runs.list(limit=1).__next__()
        except StopIteration:
            return True
        except ApiError:
            return False
        return True

    def client(self) -> Client:
        """Return a client of the HTTP API."""
        return Client(self.api)

    def _keep(self) -> None:
        """Start the services, and again when they die; the kernel ends them with this thread."""
        for service in self._services.values():
            service.start()
        while not self._over.wait(0.05):
            for service in self._services.values():
                if service.poll() is not None:
                    service.restart_later()
        for service in self._services.values():
            service.end()

    def stop(self) -> None:
        """kill -9 everything."""
        self._over.set()
        self._listener.join()
        sweep(self.mark)

    def _pid(self, name: str) -> int | None:
        process = self._services[name].process
        return None if process is None else process.pid

    def service(self, name: str) -> psutil.Process:
        """Return the main process of a role."""

        def running() -> int | None:
            return self._pid(name)

        return psutil.Process(eventually(running, f"{name} runs"))

    def restarted(self, name: str, before: psutil.Process) -> bool:
        """Tell whether a role has another process by now."""
        pid = self._pid(name)
        return pid is not None and pid != before.pid

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of the cluster."""
        return [psutil.Process(pid) for pid in marked(self.mark)]

    def slot(self, run: str) -> psutil.Process:
        """Return the process that holds the lease on a run."""

        def holder() -> psutil.Process | None:
            with self.client() as client, contextlib.suppress(ApiError, psutil.NoSuchProcess):
                attempt = max(client.runs.attempts(run), key=lambda each: each.number, default=None)
                if attempt is not None and attempt.ended_at is None:
                    return psutil.Process(int(attempt.worker_id.split("/")[1]))
            return None

        return eventually(holder, "a worker has the run", 60)

    def worker_of(self, run: str) -> str:
        """Return the name of the worker that has a run."""
        slot = self.slot(run)
        return next(name for name in WORKERS if self.service(name).pid in {slot.pid, *(p.pid for p in slot.parents())})

    def trainer(self, run: str) -> psutil.Process:
        """Return the run's trainer: of those that its slot has started, the one that is not warm."""

        def working() -> psutil.Process | None:
            with contextlib.suppress(psutil.NoSuchProcess):
                trainers = [each for each in self.slot(run).children() if "worker.trainer" in each.cmdline()]
                return max(trainers, key=lambda each: each.cpu_times().user, default=None)
            return None

        return eventually(working, "the run has a trainer", 60)

    def collector(self, run: str) -> psutil.Process:
        """Return one of the run's collectors."""

        def collecting() -> psutil.Process | None:
            with contextlib.suppress(psutil.NoSuchProcess):
                found = [each for each in self.trainer(run).children() if "worker.collectors" in each.cmdline()]
                return max(found, key=lambda each: each.cpu_times().user, default=None)
            return None

        return eventually(collecting, "the run has a collector", 60)


class Simulators:
    """Games, each in a process of its own, that join a run."""

    def __init__(self, server: str, run: str, count: int = 2, *, ca_file: Path | None = None, **settings: str) -> None:
        """`server` is where they join, host:port, over TLS if there is a `ca_file`; `settings` are variables of their
        environment.
        """
        self._server = server
        self._run = run
        self._tls = [] if ca_file is None else ["--ca-file", str(ca_file)]
        self._settings = settings
        self._processes = [self._start() for _ in range(count)]

    def _start(self) -> "subprocess.Popen[bytes]":
        game = [*LUDUS, "simulate", "gymnasium:CartPole-v1", "--run", self._run, "--server", self._server]
        return subprocess.Popen(
            [*game, *self._tls, "--count", "1", "--envs", "4"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(**self._settings),
            start_new_session=True,
        )

    def kill_one(self) -> None:
        """kill -9 a game; another one is started."""
        victim = self._processes.pop(0)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
        self._processes.append(self._start())

    def freeze_one(self) -> "subprocess.Popen[bytes]":
        """Freeze a game; `thaw` it afterwards."""
        os.killpg(self._processes[0].pid, signal.SIGSTOP)
        return self._processes[0]

    def unfreeze(self) -> None:
        """Let everything go on."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGCONT)

    def running(self) -> list[int]:
        """Return the process ids of those that have not ended."""
        return [process.pid for process in self._processes if process.poll() is None]

    def stop(self) -> None:
        """kill -9 all of them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
