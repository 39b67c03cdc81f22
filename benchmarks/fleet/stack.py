"""The servers of the fleet: PostgreSQL, PgBouncer, Redis, api, gateway and controller; and their counters."""

import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.ports import listens
from tests.chaos.servers import PgBouncer, Postgres, Redis
from tests.ports import free_port
from tests.waiting import eventually

ROLES = ("api", "gateway", "controller")
POOLED = 60
"""PgBouncer's default_pool_size."""
STATEMENTS = "pg_stat_statements"


@dataclass(frozen=True)
class Look:
    """The state of PostgreSQL at one moment."""

    connections: int
    """Connections of clients."""
    working: int
    """Those in a transaction."""
    claiming: bool
    """Whether one of them holds the lock of all claims."""


class Stack:
    """All servers, running. `url` is where PostgreSQL is, `pooled` where everything connects to."""

    def __init__(
        self,
        stack: ExitStack,
        url: str | None,
        connections: int,
        *,
        pgbouncer: bool,
        hold_seconds: float,
        lease_seconds: float,
    ) -> None:
        """`connections` is the number of client connections that the fleet may need; the gateway holds questions of
        simulators for `hold_seconds`; a slot that was silent for `lease_seconds` counts as gone.
        """
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ludus-fleet-")))
        folder.chmod(0o755)  # the servers' own user has to come in
        self.folder = folder
        if url is None:
            limit = 2 * POOLED if pgbouncer else connections
            postgres = Postgres(folder, f"max_connections={limit}", f"shared_preload_libraries={STATEMENTS}")
            stack.callback(postgres.crash)
            postgres.start()
            url = postgres.url
        self.url = self.pooled = url
        self.limit = POOLED if pgbouncer else connections
        """Transactions that can run at once."""
        redis = Redis()
        stack.callback(redis.crash)
        redis.start()
        self.broker = redis.url
        database = Database(url)
        upgrade_database(database)
        database.close()
        self._watcher = stack.enter_context(psycopg.connect(url.replace("+psycopg", ""), autocommit=True))
        with suppress(psycopg.Error):  # the extension is not installed: statements are not counted
            self._watcher.execute(f"CREATE EXTENSION IF NOT EXISTS {STATEMENTS}")
        backend = psutil.Process(self._watcher.info.backend_pid).parent()
        assert backend is not None
        self.processes: dict[str, psutil.Process] = {"postgresql": backend, "redis": psutil.Process(redis.pid)}
        if pgbouncer:
            pooler = PgBouncer(folder, url, connections=POOLED, clients=connections)
            stack.callback(pooler.crash)
            pooler.start()
            self.pooled = pooler.url
            self.processes["pgbouncer"] = psutil.Process(pooler.pid)
        ports = {name: free_port() for name in ("api", "gateway", "gateway metrics", "controller metrics")}
        self.api, self.gateway = f"127.0.0.1:{ports['api']}", f"127.0.0.1:{ports['gateway']}"
        self._metrics = {
            "api": self.api,
            "gateway": f"127.0.0.1:{ports['gateway metrics']}",
            "controller": f"127.0.0.1:{ports['controller metrics']}",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LUDUS_")}
        environment = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "LUDUS_HOME": str(folder),
            "LUDUS_DATABASE__URL": self.pooled,
            "LUDUS_QUEUE__BROKER_URL": self.broker,
            "LUDUS_API__PORT": str(ports["api"]),
            "LUDUS_GATEWAY__PORT": str(ports["gateway"]),
            "LUDUS_GATEWAY__HOLD_SECONDS": str(hold_seconds),
            "LUDUS_WORKER__LEASE_SECONDS": str(lease_seconds),
            "LUDUS_TELEMETRY__GATEWAY_PORT": str(ports["gateway metrics"]),
            "LUDUS_TELEMETRY__CONTROLLER_PORT": str(ports["controller metrics"]),
            "LUDUS_LOG__LEVEL": "warning",
        }
        for role in ROLES:
            command = [sys.executable, "-m", "ludus.cli", "server" if role == "api" else role]
            log = folder / f"{role}.log"
            with log.open("wb") as file:
                process = psutil.Popen(command, env=environment, stdout=file, stderr=file, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
            self.processes[role] = process

            def ready(role: str = role, process: psutil.Popen = process, log: Path = log) -> bool:
                assert process.poll() is None, f"the {role} ended: {log.read_text()}"
                return listens(self._metrics[role])

            eventually(ready, f"the {role} listens", 120)

    def processor_seconds(self) -> Mapping[str, float]:
        """Return the processor time that each server has used."""
        return {role: used(process) for role, process in self.processes.items()}

    def counts(self) -> Mapping[str, float]:
        """Return PostgreSQL's counters since its start: transactions, bytes of log, and statements where it counts."""
        row = self._watcher.execute(
            "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, sum(xact_commit) FROM pg_stat_database"
        ).fetchone()
        assert row is not None
        counts = {"bytes of WAL": float(row[0]), "transactions": float(row[1])}
        with suppress(psycopg.Error):
            calls = self._watcher.execute(f"SELECT sum(calls) FROM {STATEMENTS}").fetchone()  # noqa: S608
            counts["statements"] = float(calls[0]) if calls else 0.0
        return counts

    def forget_statements(self) -> None:
        """Begin to sum up the time of statements."""
        with suppress(psycopg.Error):
            self._watcher.execute(f"SELECT {STATEMENTS}_reset()")

    def dearest_statements(self, limit: int = 5) -> list[tuple[float, int, str]]:
        """Return seconds, calls and beginning of the statements that took the longest in all since then."""
        query = f"SELECT total_exec_time / 1e3, calls, query FROM {STATEMENTS} ORDER BY 1 DESC LIMIT {limit}"  # noqa: S608
        with suppress(psycopg.Error):
            return [(s, calls, " ".join(text.split())) for s, calls, text in self._watcher.execute(query).fetchall()]
        return []

    def look(self) -> Look:
        """Return the state of PostgreSQL at this moment."""
        activity = "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity"
        claims = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted"
        row = self._watcher.execute(
            f"{activity} WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
        assert row is not None
        return Look(int(row[0]), int(row[1]), claiming=self._watcher.execute(claims).fetchone() is not None)

    def query(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        return self._watcher.execute(query, values or None).fetchall()

    def rounds(self) -> Mapping[float, float]:
        """Return how many rounds of leases took at most so many seconds."""
        with urllib.request.urlopen(f"http://{self._metrics['controller']}/metrics") as response:
            lines = [line.rpartition(" ") for line in response.read().decode().splitlines()]
        found: dict[float, float] = {}
        for name, _, value in lines:
            if name.startswith("ludus_controller_round_seconds_bucket") and 'job_name="leases"' in name:
                bound = float(name.partition('le="')[2].partition('"')[0])
                found[bound] = found.get(bound, 0.0) + float(value)
        return found


def used(process: psutil.Process) -> float:
    """Return the processor seconds of a process and its descendants, of those too that have ended."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def pgbouncer_is_installed() -> bool:
    """Tell whether PgBouncer's program is on this machine."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") is not None
