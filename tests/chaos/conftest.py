"""The database of those parts of the chaos suite for which it is no matter which one they have."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.servers import POOLED, PgBouncer, Postgres


@pytest.fixture
def database() -> Iterator[dict[str, str]]:
    """The settings of a cluster's database: none (SQLite), or with LUDUS_TEST_POOLED those of PgBouncer."""
    if not POOLED:
        yield {}
        return
    folder = Path(tempfile.mkdtemp())  # pytest's are closed to PostgreSQL's user
    folder.chmod(0o755)
    with ExitStack() as over:
        over.callback(shutil.rmtree, folder)
        postgres = Postgres(folder)
        pooler = PgBouncer(folder, postgres.url)
        for server in (postgres, pooler):
            over.callback(server.crash)
            server.start()
        yield {"LUDUS_DATABASE__URL": pooler.url}
