"""PostgreSQL, PgBouncer and Redis of a test's own, on ports of their own, that can be crashed; and a cable.

LUDUS_TEST_POOLED=1 puts every PostgreSQL of the chaos suite behind PgBouncer, also where SQLite is used without it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from psycopg.rows import dict_row
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from tests.ports import free_port
from tests.waiting import eventually

START_SECONDS = 30.0
POOLED = bool(os.environ.get("LUDUS_TEST_POOLED"))


def program(name: str) -> str:
    """Return where a server's program is; skip the test where it is not installed."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") or next(
        iter(sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), reverse=True)), None
    )
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Server(ABC):
    """A server process that can be crashed."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line that starts the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server answers."""

    user: str | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, user=self.user
        )

        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"{type(self).__name__} ended: {self._process.returncode}"
            return self.answers()

        eventually(answers, f"{type(self).__name__} answers", START_SECONDS)

    def crash(self) -> None:
        """kill -9 it, and whatever it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Postgres(Server):
    """PostgreSQL; without fsync unless other settings are given: what survives a kill -9 needs none."""

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__()
        self._settings = settings or ("fsync=off",)
        self.folder = folder
        self._data = folder / "postgres"
        self.user = "postgres" if os.geteuid() == 0 else None
        self._data.mkdir(mode=0o700)
        if self.user is not None:
            shutil.chown(self._data, self.user)
        subprocess.run(self._fill(), check=True, stdout=subprocess.DEVNULL, user=self.user, cwd="/")
        self.url = f"postgresql+psycopg://ludus@127.0.0.1:{self.port}/postgres"

    def _fill(self) -> Sequence[str]:
        """Return the command that fills the folder of its data."""
        options = ["-U", "ludus", "--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale"]
        return [program("initdb"), "-D", str(self._data), *options]

    def command(self) -> Sequence[str]:
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", *self._settings]
        options = [word for setting in settings for word in ("-c", setting)]
        return [program("postgres"), "-D", str(self._data), "-p", str(self.port), *options]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, *statements: str) -> Any:
        """Execute statements, each by itself; return the first value that the last one returns."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            for statement in statements:
                answer = connection.execute(statement)
            return answer.fetchone()[0] if answer.description else None

    def crash(self) -> None:
        """kill -9 it. Its children notice, and must be gone before it can be started again."""
        super().crash()
        (self._data / "postmaster.pid").unlink(missing_ok=True)


class Standby(Postgres):
    """A copy of a running PostgreSQL that follows it until it is promoted."""

    def __init__(self, folder: Path, primary: Postgres) -> None:
        self._primary = primary
        super().__init__(folder)

    def _fill(self) -> Sequence[str]:
        primary = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "ludus"]
        return [program("pg_basebackup"), "-D", str(self._data), *primary, "-R", "--checkpoint=fast", "--no-sync"]

    def promote(self) -> None:
        """Make it a primary, once it has all that the primary has, which takes no writes any more."""
        written = self._primary.ask("SELECT pg_current_wal_lsn()")
        eventually(lambda: self.ask(f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "it has caught up", 60)
        assert self.ask("SELECT pg_promote()")


class PgBouncer(Server):
    """A pooler in front of a PostgreSQL. A crash ends the connections of both sides."""

    def __init__(
        self,
        folder: Path,
        target: URL | str,
        mode: str = "transaction",
        connections: int = 20,
        clients: int = 5000,
    ) -> None:
        super().__init__()
        target = make_url(target)
        self.user = "postgres" if os.geteuid() == 0 else None
        self._settings = folder / f"pgbouncer-{self.port}.ini"
        self._settings.write_text(
            f"[databases]\n* = host={target.host} port={target.port or 5432} user={target.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = {connections}\nmax_client_conn = {clients}\n"
            "server_login_retry = 1\nquery_wait_timeout = 30\n"
        )
        self._settings.chmod(0o644)
        self.url = target.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    def command(self) -> Sequence[str]:
        return [program("pgbouncer"), "-q", str(self._settings)]

    def answers(self) -> bool:
        try:
            self.console("SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def console(self, command: str) -> list[dict[str, Any]]:
        """Return what the pooler's own console answers."""
        console: Any = psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname="pgbouncer",
            user="postgres",
            connect_timeout=2,
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            row_factory=dict_row,
        )
        with contextlib.closing(console):
            return list(console.execute(command).fetchall())


class Redis(Server):
    """Redis without a file: a crash loses every message."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        return [program("redis-server"), "--port", str(self.port), *options]

    def answers(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def cut_for(cables: Sequence["Cable"], seconds: float) -> None:
    """Let nothing through some cables for a while."""
    for cable in cables:
        cable.cut()
    time.sleep(seconds)  # allow: sleep, because the outage lasts so long
    for cable in cables:
        cable.mend()


class Cable:
    """Carries TCP from one address to another, and can be cut (connections end, nobody is let in) or blocked.

    While it is blocked, connections that are open stay so, and nothing comes through: what a network element does that
    has forgotten a connection. New connections work.
    """

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._listen = listen
        self._target = target
        self._open: list[socket.socket] = []
        self._blocked: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._server: socket.socket | None = None

    def mend(self) -> None:
        """Let connections in."""
        self._server = socket.create_server(self._listen)
        self._begin(self._accept, self._server)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._threads.clear()
        self._blocked.clear()

    def redirect(self, target: tuple[str, int]) -> None:
        """Lead new connections to another address. Those that are open stay where they are."""
        self._target = target

    def block(self) -> int:
        """Let nothing more through on the connections that are open now; return how many they are."""
        self._blocked.update(self._open)
        return len(self._open) // 2

    def _begin(self, target: Callable[..., None], *ends: socket.socket) -> None:
        thread = threading.Thread(target=target, args=ends, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                self._begin(self._carry, source, sink)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._blocked:
                    sink.sendall(data)
        if source not in self._blocked:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
