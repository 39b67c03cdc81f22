"""The connection to the system of record: SQLite or PostgreSQL, read and write transactions, work after the commit.

    with database.write() as session:      # one transaction: committed at the end, rolled back on an exception
        RunRepository(session).insert(run)
        after_commit(session, lambda: wake_up.wake(run.id))

SQLite (WAL): every writing transaction begins with `BEGIN IMMEDIATE` and waits for the writer before it; a transaction
that reads first and writes later would fail at once with "database is locked", with any time-out. The driver's own
transaction handling is off (`isolation_level=None`), because it begins transactions late and never for reads. Readers
have connections of their own that refuse to write, and see one snapshot.
PostgreSQL: READ COMMITTED, with time-outs for locks and statements. It ends a transaction that is idle (a stopped
process, a lost host) for longer than others wait for its locks. Operations that must not interleave lock the run's row
first. A pooler (PgBouncer, transaction pooling) may stand in between: a connection keeps no state from one transaction
to the next, so the time-outs travel with each BEGIN, in the same round trip. A connection to a pooler is replaced after
a minute, so that a pooler which new connections no longer reach can end without a failed transaction; one to a server
after ten, or once the server says that it takes no writes any more: another one has taken its place, maybe.
"""

import copy
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import structlog
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from server.kit.db.once import GATHERS, ONCE, begin_later, gather
from server.kit.db.outages import leave_read_only, takes_no_writes, translated
from server.kit.db.projects import ProjectSession, info_of
from server.kit.errors import DatabaseUnavailable
from server.kit.settings import DatabaseSettings
from server.kit.tracing import Tracer

__all__ = ["Database", "Session", "after_commit"]

Effect = Callable[[], None]
CONNECTIONS = 16
"""Maximum number of connections of a process, for reading and for writing each, unless its role needs fewer."""
_SERVER_CONNECTIONS = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
"""
_EFFECTS = "ludus_after_commit"
_ACTOR = "ludus_actor"
_READS = "ludus_reads"
"""Execution option of the engine whose transactions are read-only."""
_TRACER = "ludus_tracer"
_IDLE_SINCE = "ludus_idle_since"
_UNTIL = "ludus_until"
_READ_ONLY = "ludus_read_only"
PING_SECONDS = 15.0
"""A connection that was idle for longer is pinged before it is used: keepalives take so long to find its host gone."""
POOLER_SECONDS, SERVER_SECONDS = 60.0, 600.0
"""No transaction begins on a connection to a pooler, or to a server itself, that is older."""
READ_ONLY_SECONDS = 5.0
"""The same, where the server said from the beginning that it takes no writes."""
READER_CACHE_KIB, WRITER_CACHE_KIB = 8192, 1024
"""SQLite's page cache per connection. Lists of runs profit from theirs; a writer appends, and its cache would only grow
with the database up to this bound (the operating system caches the file for all of them).
"""
_log = structlog.get_logger(__name__)


def after_commit(session: Session, effect: Effect) -> None:
    """Run `effect` once this session's transaction is committed; never if it is rolled back."""
    session.info.setdefault(_EFFECTS, []).append(effect)


class Database:
    """Opens transactions. One per process (never across a fork); safe to share between threads."""

    def __init__(
        self,
        url: str | URL,
        *,
        synchronous: str = "FULL",
        busy_seconds: float = 15,
        statement_seconds: float = 30,
        pool_size: int = CONNECTIONS,
        pooler_seconds: float = POOLER_SECONDS,
    ) -> None:
        self.url = make_url(url)
        self.busy_seconds = busy_seconds
        """For which a transaction waits for others."""
        self._pool_size = pool_size
        self._project: str | None = None
        self._before_commit: Callable[[Session], None] | None = None
        self._actor: str | None = None
        self.tracer: Tracer | None = None
        """Gets a span for each run that ends here; None: traces are off."""
        if self.url.get_backend_name() == "sqlite":
            # SQLite's waiting writers poll, up to 100 ms apart; a lock wakes those of this process at once.
            self._write_lock: AbstractContextManager[object] = _WriteLock(busy_seconds)
            self._reader = _sqlite_engine(self.url, synchronous, busy_seconds, pool_size, writes=False)
            self._writer = _sqlite_engine(self.url, synchronous, busy_seconds, pool_size, writes=True)
        else:
            self._write_lock = nullcontext()
            self._writer = _postgresql_engine(self.url, busy_seconds, statement_seconds, pool_size, pooler_seconds)
            self._reader = self._writer.execution_options(**{_READS: True})

    @classmethod
    def from_settings(cls, settings: DatabaseSettings, connections: int = CONNECTIONS) -> Self:
        """Connect as the settings say; with at most so many connections at once, if they do not say how many."""
        return cls(
            settings.url.get_secret_value(),
            synchronous=settings.synchronous,
            busy_seconds=settings.busy_seconds,
            statement_seconds=settings.statement_seconds,
            pool_size=settings.pool_size or connections,
        )

    @property
    def engine(self) -> Engine:
        """The engine that writes (for migrations and tests)."""
        return self._writer

    def within(
        self, project: str | None, before_commit: Callable[[Session], None] | None = None, actor: str | None = None
    ) -> Self:
        """Return a view of the same database whose sessions see, and add to, one project alone; None: every project.

        `before_commit` runs at the end of each of its writing transactions, inside the transaction. `actor` is the name
        of the principal on whose behalf they write (`actor_of`).
        """
        view = copy.copy(self)
        view.__dict__.update(_project=project, _before_commit=before_commit, _actor=actor)
        return view

    @contextmanager
    def read(self, *, once: bool = False) -> Iterator[Session]:
        """One read-only transaction, `once` of one statement. Raises DatabaseUnavailable if the database is away."""
        engine = self._reader.execution_options(**{ONCE: True}) if once else self._reader
        with translated(writes=False), self._session(engine, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self, *, once: bool = False, gathers: bool = False) -> Iterator[Session]:
        """One writing transaction, committed at the end of the block; then the effects of `after_commit` run.

        `once` says that it has one statement, which may be committed at once; with `gathers`, PostgreSQL gets what
        returns nothing together with what follows (both: `server.kit.db.once`). Raises DatabaseUnavailable when the
        database doesn't answer or another writer doesn't finish; nothing is written then.
        """
        engine = self._writer.execution_options(**{ONCE: once, GATHERS: gathers}) if once or gathers else self._writer
        with self._write_lock, translated(writes=True), self._session(engine) as session:
            session.connection()
            yield session
            if self._before_commit is not None:
                self._before_commit(session)
            _commit(session)
        effects: list[Effect] = session.info.pop(_EFFECTS, [])
        for effect in effects:
            effect()

    def connections(self) -> dict[str, tuple[int, int]]:
        """Return for each pool how many connections are in use, and how many there may be."""
        pools = {"shared": self._writer} if self._reader.pool is self._writer.pool else {}
        pools = pools or {"read": self._reader, "write": self._writer}
        usage = {}
        for name, engine in pools.items():
            pool = engine.pool
            assert isinstance(pool, QueuePool)
            usage[name] = (pool.checkedout(), self._pool_size)
        return usage

    def server_connections(self) -> tuple[int, int] | None:
        """Return how many connections the PostgreSQL server has with all its clients, and how many it may have.

        None with SQLite. Raises DatabaseUnavailable.
        """
        if self.url.get_backend_name() == "sqlite":
            return None
        with self.read() as session:
            used, limit = session.execute(text(_SERVER_CONNECTIONS)).one()
        return used, limit

    def _session(self, engine: Engine, *, autoflush: bool = True) -> Session:
        info = info_of(self._project) | ({} if self._actor is None else {_ACTOR: self._actor})
        info |= {} if self.tracer is None else {_TRACER: self.tracer}
        return ProjectSession(engine, expire_on_commit=False, autoflush=autoflush, info=info)

    def ping(self) -> None:
        """Check that the database answers. Raises DatabaseUnavailable."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all idle connections."""
        self._reader.dispose()
        self._writer.dispose()


def actor_of(session: Session) -> str | None:
    """Return the name of the principal on whose behalf a session writes; None where a process of the server does."""
    actor: str | None = session.info.get(_ACTOR)
    return actor


def tracer_of(session: Session) -> Tracer | None:
    """Return the tracer of the database that opened a session; None where traces are off."""
    tracer: Tracer | None = session.info.get(_TRACER)
    return tracer


def _commit(session: Session) -> None:
    """Commit, or close the connection: one whose COMMIT failed may still hold the transaction and its locks."""
    try:
        session.commit()
    except BaseException:
        session.invalidate()
        raise


class _WriteLock:
    """A lock with the time-out of the database."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise DatabaseUnavailable("another thread's transaction did not end in time")

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def _sqlite_engine(url: URL, synchronous: str, busy_seconds: float, pool_size: int, *, writes: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError("an SQLite database must be a file: every connection would see a memory database of its own")
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        connect_args={"timeout": busy_seconds, "isolation_level": None, "check_same_thread": False},
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,
    )

    pragmas = (
        f"synchronous={synchronous}",
        "foreign_keys=ON",
        f"cache_size=-{WRITER_CACHE_KIB if writes else READER_CACHE_KIB}",
        "temp_store=MEMORY",
        "journal_size_limit=67108864",
        f"query_only={'OFF' if writes else 'ON'}",
    )

    def connected(connection: DBAPIConnection, _record: object) -> None:
        try:
            _set_wal(connection, busy_seconds)
            with closing(connection.cursor()) as cursor:
                for pragma in pragmas:
                    cursor.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()  # the pool never gets it
            raise

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    if writes:
        leave_read_only(engine, _READS)
    return engine


def _set_wal(connection: DBAPIConnection, busy_seconds: float) -> None:
    """Switch to WAL. The switch itself does not honour the busy time-out, so several first openers would collide."""
    give_up = time.monotonic() + busy_seconds
    cursor = connection.cursor()
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        else:
            break
    cursor.close()


def _postgresql_engine(
    url: URL, busy_seconds: float, statement_seconds: float, pool_size: int, pooler_seconds: float
) -> Engine:
    busy = int(busy_seconds * 1000)
    # One message with these statements: no more round trips than BEGIN alone, and 6 us more of the server's processor.
    # Startup options would be refused by a pooler, or, where it is told to ignore them, be lost without a word.
    # PostgreSQL overrates the cost of queries with subqueries: it compiled one that takes 2 ms for 0.7 s each time.
    limits = (
        f"SET LOCAL lock_timeout = {busy}; SET LOCAL idle_in_transaction_session_timeout = {busy}; "
        f"SET LOCAL statement_timeout = {int(statement_seconds * 1000)}; SET LOCAL jit = off"
    )
    engine = create_engine(
        url,
        connect_args={
            "autocommit": True,  # transactions begin with the message below, not with the driver's own
            "connect_timeout": 10,
            "application_name": "ludus",
            "client_encoding": "utf8",  # a server without a locale hands out bytes otherwise (`server.kit.db.checks`)
            # A server that is cut off acknowledges nothing. Linux would wait 15 minutes for it, and once it is back, up
            # to 2 minutes until the next retransmission: this connection fails after 15 s, and the next one is new.
            "tcp_user_timeout": 15_000,
            "keepalives_idle": 5,
            "keepalives_interval": 5,
            "keepalives_count": 2,
        },
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,
    )

    def connected(connection: Any, record: ConnectionPoolEntry) -> None:
        # The next transaction may run on another connection of the pooler, which has not prepared the statement.
        try:
            record.info[_READ_ONLY] = takes_no_writes(connection)
            seconds = READ_ONLY_SECONDS if record.info[_READ_ONLY] else SERVER_SECONDS
            if behind_pooler(connection):
                connection.prepare_threshold = None
                seconds = pooler_seconds
            record.info[_UNTIL] = time.monotonic() + seconds
        except BaseException:
            connection.close()  # the pool never gets it
            raise

    def begun(connection: Any) -> None:
        options = connection.get_execution_options()
        begin = f"BEGIN{' READ ONLY' if options.get(_READS) else ''}; {limits}"
        if options.get(ONCE) or options.get(GATHERS):
            begin_later(connection, begin)
        else:
            connection.exec_driver_sql(begin)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    gather(engine)
    _ping_doubtful_connections(engine)
    leave_read_only(engine, _READS)
    return engine


def behind_pooler(connection: Any) -> bool:
    """Tell whether a psycopg connection leads to a pooler: that makes up the process id which it names at the start."""
    (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    return bool(pid != connection.info.backend_pid)


def _ping_doubtful_connections(engine: Engine) -> None:
    """Replace dead connections before transactions begin on them, without a round trip for each (`pool_pre_ping`).

    A server that ends or restarts closes the connection, and so does the kernel when keepalives find its host gone:
    the socket can be read then, although no answer is due. Only such a connection is pinged, and one that was idle for
    longer than the keepalives take. Old connections are replaced, too.
    """

    def idle(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def wanted(connection: Any, record: ConnectionPoolEntry, _fairy: object) -> None:
        if time.monotonic() > record.info[_UNTIL]:
            raise DisconnectionError  # the pool replaces this one
        since = record.info.get(_IDLE_SINCE)
        if since is None:
            return  # it is new
        try:
            socket = select.poll()
            socket.register(connection.fileno(), select.POLLIN)
            if time.monotonic() - since > PING_SECONDS or socket.poll(0):
                engine.dialect.do_ping(connection)
        except connection.Error as error:
            raise InvalidatePoolError from error  # the pool connects again
        if takes_no_writes(connection) != record.info[_READ_ONLY]:
            raise InvalidatePoolError  # another server is the primary now, maybe

    event.listen(engine, "checkin", idle)
    event.listen(engine, "checkout", wanted)
