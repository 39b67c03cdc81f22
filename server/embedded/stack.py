"""The embedded stack: `ludus up` starts api, gateway, controller and worker on this machine and keeps them running.

Its promises: it says in one sentence why it can't start; it starts again what dies; one Ctrl-C stops everything
within `STOP_SECONDS`, a second one at once; and no process is left behind, however it ends. For the last one it has
three means: the kernel's parent-death signal on its children, a mark in the environment of everything below it that is
swept at the end, and an orphan reaper that sweeps when `ludus up` itself is killed.

It imports neither the web framework nor the database: the parent of everything stays small.
"""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from ludus.backoff import Backoff
from ludus.child_process import ChildProcess, RestartedProcess, describe_exit
from server.embedded.console import Console, LogTail
from server.kit.listening import LOOPBACK, ApiSettings
from server.kit.ports import WEBSOCKETS, CannotStart, address, api_is_ready, listen, listens, reserve
from server.kit.processes import MARK, AlreadyLocked, FileLock, sweep
from server.kit.settings import Settings

READY_SECONDS = 120.0
AWAIT = "LUDUS_DATABASE__AWAIT_SCHEMA_SECONDS"
LOCK_TIMEOUT_SECONDS = 3.0
"""A killed predecessor's orphan reaper needs a moment to sweep."""
TICK_SECONDS = 0.2
LOG_LINES_AT_DEATH = 15


class HomeInUse(CannotStart):
    """Another `ludus up` works in the same home folder."""

    exit_code = 2

    def __init__(self, home: Path, owner: str) -> None:
        super().__init__(
            f"{home} is in use by another `ludus up` ({owner}): stop that one, or choose another folder with --home."
        )


@dataclass(frozen=True)
class Ready:
    """The information for scripts when the stack is ready, as one JSON object."""

    api: str
    """Address of the HTTP API, without a slash at the end."""
    gateway: str
    """`host:port` for simulators."""
    websocket: str | None
    """Address of the gateway for simulators without HTTP/2, `ws://host:port`; None: it takes none."""
    home: str
    pid: int

    def to_json(self) -> str:
        """Render as one line."""
        return json.dumps(vars(self))


class Interrupts:
    """Counts the requests to stop (SIGINT, SIGTERM, SIGHUP) and wakes up who waits."""

    def __init__(self) -> None:
        self.count = 0
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored means `nohup`
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._stack.callback(signal.signal, number, signal.signal(number, self._count))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than until the next request."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 64)

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        os.write(self._write, b"!")


class _StopRequestedError(Exception):
    """Ends the stack at any point of its start."""


class Stack:
    """Everything that `ludus up` runs, for one home folder."""

    def __init__(self, settings: Settings, console: Console, *, stop_seconds: float) -> None:
        self._settings = settings
        self._console = console
        self._stop_seconds = stop_seconds
        self._mark = uuid.uuid4().hex
        self._interrupts = Interrupts()
        self._children: dict[str, RestartedProcess] = {}
        self._tails: dict[str, LogTail] = {}

    def run(self, on_ready: Callable[[Ready], None]) -> None:
        """Start, keep running, and stop when asked to. Raises `CannotStart`; leaves no process behind in any case."""
        home = self._settings.home
        try:
            lock = FileLock.take(home / "up.lock", f"process {os.getpid()}", LOCK_TIMEOUT_SECONDS)
        except AlreadyLocked as error:
            raise HomeInUse(home, error.owner) from None
        except OSError as error:
            raise CannotStart(
                f"The folder {home} can't be used: {error.strerror}. Choose another with --home."
            ) from None
        with (
            listen(self._settings.api.host, self._settings.api.port) as api_socket,
            reserve(self._settings.gateway.host, self._settings.gateway.port) as gateway_socket,
            self._reserve_websocket(gateway_socket.getsockname()[1]) as websocket_socket,
            self._interrupts,
        ):
            gateway_port = gateway_socket.getsockname()[1]
            websocket_port = "off" if websocket_socket is None else websocket_socket.getsockname()[1]
            reaper = start_orphan_reaper(self._mark, lock)
            try:
                self._start(api_socket, gateway_port, websocket_port)
                ready = self._wait_until_ready(api_socket.getsockname()[1], gateway_port, websocket_port)
                on_ready(ready)
                while True:
                    for name, child in self._children.items():
                        if (code := child.poll()) is not None:
                            pause = child.restart_later()
                            self._console.say(f"died ({describe_exit(code)}); it is started again in {pause:g} s", name)
                    self._pause()
            except _StopRequestedError:
                self._console.say("stopping (Ctrl-C again: at once)")
            finally:
                self._stop()
                assert reaper.stdin is not None
                reaper.stdin.close()
                reaper.wait()
                lock.release()

    def _reserve_websocket(self, gateway_port: int) -> socket.socket | nullcontext[None]:
        """Take the port for WebSockets: the one that is set, else that behind the gateway's, or any that is free."""
        settings = self._settings.gateway
        if "websocket_port" in settings.model_fields_set:
            port = settings.websocket_port
            return nullcontext() if port == "off" else reserve(settings.host, port, WEBSOCKETS)
        try:
            return reserve(settings.host, (gateway_port + 1) % 65536 if settings.port else 0, WEBSOCKETS)
        except CannotStart:
            return reserve(settings.host, 0, WEBSOCKETS)

    def _start(self, api_socket: socket.socket, gateway_port: int, websocket_port: int | str) -> None:
        environment = self._environment(api_socket.getsockname()[1], gateway_port)
        environment |= {"LUDUS_GATEWAY__WEBSOCKET_PORT": str(websocket_port), AWAIT: str(READY_SECONDS)}
        logs = self._settings.home / "logs"
        logs.mkdir(exist_ok=True)

        def start(name: str, *command: str, descriptors: tuple[int, ...] = ()) -> None:
            tail = self._tails[name] = LogTail(name, logs / f"{name}.log")
            tail.rotate()
            launch = partial(start_command, command, environment, tail.path, descriptors)
            self._children[name] = RestartedProcess(launch, Backoff(0.5, 30.0))
            self._children[name].start()

        listening = api_socket.fileno()
        start("migrate", "migrate")
        start("worker", "worker")  # it takes the longest to be ready, and waits for the migration itself
        while (code := self._children["migrate"].poll()) is None:
            self._pause()
        if code != 0:
            reason = describe_exit(code)
            raise CannotStart(f"The database could not be migrated ({reason}):\n{self._last_lines('migrate')}")
        del self._children["migrate"]
        environment[AWAIT] = "0"  # it is there: nothing that starts from now on looks for it
        start("api", "server", "--fd", str(listening), descriptors=(listening,))
        start("gateway", "gateway")
        start("controller", "controller")

    def _environment(self, api_port: int, gateway_port: int) -> dict[str, str]:
        # With tickets a simulator that comes back keeps its number, and so its seed. Every stack has its own key.
        has_key = self._settings.gateway.ticket_key is not None
        return {
            **({} if has_key else {"LUDUS_GATEWAY__TICKET_KEY": secrets.token_urlsafe(32)}),
            "LUDUS_WEBHOOKS__PRIVATE_ADDRESSES": str(private_receivers(self._settings.api)).lower(),
            **os.environ,
            "LUDUS_HOME": str(self._settings.home),
            "LUDUS_API__PORT": str(api_port),
            "LUDUS_GATEWAY__PORT": str(gateway_port),
            **(
                {} if self._settings.worker.slots is None else {"LUDUS_WORKER__SLOTS": str(self._settings.worker.slots)}
            ),
            "PYTHONSAFEPATH": "1",  # a folder named `server` where the user stands must not be taken for ours
            "PYTHONUNBUFFERED": "1",
            MARK: self._mark,
        }

    def _wait_until_ready(self, api_port: int, gateway_port: int, websocket_port: int | str) -> Ready:
        api = address(self._settings.api.host, api_port)
        gateway = address(self._settings.gateway.host, gateway_port)
        began = time.time()
        deadline = time.monotonic() + READY_SECONDS
        secret = self._settings.api.token
        token = None if secret is None else secret.get_secret_value()
        while not (listens(gateway) and api_is_ready(api, token, began, self._settings.api.tls)):
            for name, child in self._children.items():
                if (code := child.poll()) is not None:
                    reason = describe_exit(code)
                    raise CannotStart(f"The {name} ended at its start ({reason}):\n{self._last_lines(name)}")
            if time.monotonic() > deadline:
                raise CannotStart(f"Not ready after {READY_SECONDS:g} s; see {self._settings.home / 'logs'}.")
            self._pause()
        scheme = "http" if self._settings.api.tls is None else "https"
        host, tls = self._settings.gateway.host, self._settings.gateway.tls
        where = address(host, websocket_port) if isinstance(websocket_port, int) else None
        websocket = None if where is None else f"{'ws' if tls is None else 'wss'}://{where}"
        return Ready(f"{scheme}://{api}", gateway, websocket, str(self._settings.home), os.getpid())

    def _pause(self) -> None:
        """Show new log lines, wait a moment, and leave if the stack shall stop."""
        for tail in self._tails.values():
            self._console.show(tail)
        self._interrupts.wait(TICK_SECONDS)
        if self._interrupts.count:
            raise _StopRequestedError

    def _stop(self) -> None:
        deadline = time.monotonic() + self._stop_seconds
        for child in self._children.values():
            child.terminate()
        while any([child.poll() is None and child.process for child in self._children.values()]):  # noqa: C419  poll all
            if self._interrupts.count > 1:
                self._console.say("stopped at once")
                break
            if time.monotonic() > deadline:
                self._console.say(f"not stopped after {self._stop_seconds:g} s; ending what is left")
                break
            self._interrupts.wait(TICK_SECONDS / 4)
        for child in self._children.values():
            child.end()
        sweep(self._mark)
        for tail in self._tails.values():
            self._console.show(tail)

    def _last_lines(self, name: str) -> str:
        lines = self._tails[name].last_lines(LOG_LINES_AT_DEATH)
        return "\n".join(f"  {line}" for line in lines) or f"  (nothing in {self._tails[name].path})"


def start_command(
    command: Sequence[str], environment: Mapping[str, str], log: Path, descriptors: Sequence[int] = ()
) -> ChildProcess:
    """Start a `ludus` command that ends with this process and appends to a log file.

    No pipe lies between: a slow reader cannot block the command, and no line is lost when this process dies. Must be
    called by the main thread, because a tied process ends with the thread that started it.
    """
    with log.open("ab") as file:
        return ChildProcess(
            [sys.executable, "-m", "ludus.cli", *command],
            environment=environment,
            descriptors=descriptors,
            own_group=True,
            tied=True,
            stdout=file,
            stderr=file,
        )


def private_receivers(api: ApiSettings) -> bool:
    """Return whether webhooks may be sent to this machine and its network unless the operator says otherwise.

    Clients of an API on loopback without tokens reach this machine's ports anyway. With tokens they can be on other
    machines, behind a reverse proxy, and must not reach through the server what they cannot reach themselves.
    """
    return api.host in LOOPBACK and not api.demands_token


def start_orphan_reaper(mark: str, lock: FileLock) -> subprocess.Popen[bytes]:
    """Start the process that sweeps if this one is killed. It does not carry the mark itself."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "server.embedded.orphan_reaper", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(lock.descriptor,),
        start_new_session=True,
    )
