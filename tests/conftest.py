"""Fixtures that several parts share: a database built by migrations, on SQLite and, where one is named, PostgreSQL."""

import faulthandler
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL

from server.app.models import Base
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from tests import forked_collectors
from tests.examples import examples
from tests.factories import RecordingWakeUp
from tests.migrated import migrated_file, share_compiled
from tests.waiting import eventually

# How long an example takes says what else the machine does, not whether it is right.
settings.register_profile(
    "any machine", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

POSTGRES_URL = os.environ.get("LUDUS_TEST_POSTGRES_URL")
NEEDS_POSTGRESQL = pytest.mark.skipif(not POSTGRES_URL, reason="needs LUDUS_TEST_POSTGRES_URL")
POSTGRESQL_ONLY = [pytest.param("postgresql", marks=[pytest.mark.postgres, NEEDS_POSTGRESQL])]
"""For tests that say `parametrize("database_url", POSTGRESQL_ONLY, indirect=True)`."""
BACKENDS = ["sqlite", *(POSTGRESQL_ONLY if POSTGRES_URL else [])]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests that share something in one process with `--dist loadgroup`, which goes by the end of a test's id.

    Those are the tests of an `xdist_group` (xdist 3.8 appends the group to an attribute that pytest 9.2 no longer has),
    and the tests of a module that use a fixture of the module: it would be made again in each process.
    """
    if not config.getoption("loadgroup", default=False):  # only xdist's processes have it
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if not groups and _shares_a_fixture_of_its_module(item):
            groups = [item.nodeid.partition("::")[0]]
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):
            item._id = type(item.id).parse(f"{item.nodeid}{suffix}")


def _shares_a_fixture_of_its_module(item: pytest.Item) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(found[-1].scope == "module" for found in definitions.values())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that outlasts its time-out in C code, where no signal handler of Python runs.

    xdist then reports the test as crashed and goes on with the others, where `make` waited without end before.
    """
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    if seconds:  # 0: a test without a limit
        faulthandler.dump_traceback_later(seconds + 60, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _has_begun(thread: threading.Thread) -> bool:
    """Whether a thread that was listed can be waited for: it is listed a moment before it runs."""
    return thread.is_alive() or thread not in threading.enumerate()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Wait for what a test does later (`threading.Timer`) before the fixtures that it uses are torn down."""
    try:
        return (yield)
    finally:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                eventually(partial(_has_begun, thread))
                thread.join(10)


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> Iterator[None]:
    """Hide what costs the processes that tests start much time, and that none needs (tests/without)."""
    paths = [os.environ.get("PYTHONPATH"), str(Path(__file__).with_name("without"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_collectors() -> Iterator[None]:
    """Fork the collectors of tests from an interpreter that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        forked_collectors.install(patch)
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Let no test that configures logging decide for later ones: where loggers write, what a thread's end does."""
    configured, hook = structlog.get_config(), threading.excepthook
    yield
    threading.excepthook = hook
    if structlog.get_config() != configured:
        structlog.configure(**configured)


@pytest.fixture(scope="session")
def sqlite_template() -> Path:
    """Return a migrated SQLite file that tests copy."""
    return migrated_file()


@contextmanager
def postgresql_database(options: str = "") -> Iterator[URL]:
    """Create an empty PostgreSQL database, and drop it at the end. The options are those of CREATE DATABASE."""
    assert POSTGRES_URL, "only tests with the marker `postgres` come here"
    server = make_url(POSTGRES_URL)
    name = f"ludus_test_{secrets.token_hex(6)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    try:
        yield server.set(database=name)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[URL]:
    """Return a migrated PostgreSQL database for this session."""
    with postgresql_database() as url:
        database = Database(url)
        upgrade_database(database)
        database.close()
        yield url


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty, migrated database of this test's own."""
    if request.param == "sqlite":
        path = tmp_path / "ludus.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    url: URL = request.getfixturevalue("postgresql_url")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(Base.metadata.tables)} CASCADE"))
    engine.dispose()
    return url.render_as_string(hide_password=False)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Return a connection to an empty, migrated database, which waits for no disk: no test pulls the plug."""
    database = share_compiled(Database(database_url, synchronous="OFF"))
    yield database
    database.close()


@pytest.fixture
def wake_up() -> RecordingWakeUp:
    """Return a fake that records which runs it was asked to wake workers for."""
    return RecordingWakeUp()
