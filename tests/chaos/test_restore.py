"""The drill of docs/operations.md: a deployment is copied while it trains, and its runs go on elsewhere from the copy.

The commands are those of the page, for artifacts in a folder and in a bucket. The copies are made at a bad moment:
between that of the database and that of the files one run loses its worker, goes on in the next attempt, and gives up
every checkpoint that the first copy knows.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from ludus.client import Client
from ludus.schemas import Event
from tests.chaos.cluster import Cluster, Simulators
from tests.chaos.servers import POOLED, PgBouncer, Postgres, Redis, program
from tests.e2e.stack import cartpole
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server, needs_s3, serve_s3
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]
log = structlog.get_logger()
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
KEPT = 3
CONFIG = cartpole(max_steps=10**7, keep_checkpoints=KEPT, checkpoint_interval=3000)
RUNS = 2
"""As many as there are workers."""


def command(block: str, number: int, **places: object) -> str:
    """Return a line of a block of the page, with the words in capitals replaced."""
    (script,) = re.findall(rf"<!-- tested: {block} -->\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    line = script.splitlines()[number]
    for name, place in places.items():
        line, count = re.subn(rf"\b{name}\b", str(place), line)
        assert count, f"{block} has no {name}"
    return str(line)


def execute(line: str, **variables: str) -> None:
    """Execute a line of the page in a shell, with more variables in its environment."""
    path = f"{Path(program('pg_dump')).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{line}: {done.stderr}"


class Folders:
    """Artifacts in a folder."""

    def __init__(self, folder: Path) -> None:
        program("rsync")
        self._live, self._restored = folder / "live", folder / "restored"
        self.live = {"LUDUS_STORAGE__ROOT": str(self._live)}
        self.restored = {"LUDUS_STORAGE__ROOT": str(self._restored)}

    def back_up(self, copy: Path) -> None:
        execute(command("backup", 1, ARTIFACTS=self._live, COPY=copy))

    def restore(self, copy: Path) -> None:
        execute(command("restore", 1, ARTIFACTS=self._restored, COPY=copy))

    def remove_a_file(self, path: str) -> None:
        next((self._restored / path).iterdir()).unlink()


class Buckets:
    """Artifacts in a bucket, copied to another one."""

    def __init__(self, server: S3Server) -> None:
        program("aws")
        self._client: Any = server.client()
        self._commands = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        keys = {"LUDUS_STORAGE__ACCESS_KEY": ACCESS_KEY, "LUDUS_STORAGE__SECRET_KEY": SECRET_KEY}
        self._client.create_bucket(Bucket="saved")
        self.live = {"LUDUS_STORAGE__URL": server.bucket("live"), **keys}
        self.restored = {"LUDUS_STORAGE__URL": server.bucket("restored"), **keys}

    def back_up(self, copy: Path) -> None:
        execute(command("backup of a bucket", 0, BUCKET="live/some/prefix", SAVED="saved"), **self._commands)

    def restore(self, copy: Path) -> None:
        execute(command("restore of a bucket", 0, SAVED="saved", BUCKET="restored/some/prefix"), **self._commands)

    def remove_a_file(self, path: str) -> None:
        first, *_ = self._client.list_objects_v2(Bucket="restored", Prefix=f"some/prefix/{path}/")["Contents"]
        self._client.delete_object(Bucket="restored", Key=first["Key"])


@pytest.fixture(params=["folder", pytest.param("bucket", marks=[pytest.mark.s3, needs_s3])])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folders | Buckets]:
    if request.param == "folder":
        yield Folders(tmp_path)
    else:
        with serve_s3(tmp_path / "s3") as server:
            yield Buckets(server)


@dataclass(frozen=True)
class Site:
    """The servers of a deployment."""

    postgres: Postgres
    settings: dict[str, str]


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    """PostgreSQL and Redis twice: of the deployment, and elsewhere."""
    with ExitStack() as over:
        made = []
        for _ in range(2):
            folder = Path(tempfile.mkdtemp())  # pytest's are closed to PostgreSQL's user
            folder.chmod(0o755)
            over.callback(shutil.rmtree, folder)
            postgres, redis = Postgres(folder), Redis()
            pooler = PgBouncer(folder, postgres.url) if POOLED else None
            for server in filter(None, (postgres, pooler, redis)):
                over.callback(server.crash)
                server.start()
            url = postgres.url if pooler is None else pooler.url
            made.append(Site(postgres, {"LUDUS_DATABASE__URL": url, "LUDUS_QUEUE__BROKER_URL": redis.url}))
        yield made


def address(server: Postgres) -> str:
    """Return a server's address as PostgreSQL's own programs read it."""
    return server.url.replace("+psycopg", "")


def checkpoints_of(server: Postgres, run: str) -> list[tuple[str, str]]:
    """Return id and path of a run's checkpoints with files, the newest first, as its database has them."""
    with psycopg.connect(address(server)) as connection:
        return connection.execute(
            "SELECT id, path FROM checkpoints WHERE run_id = %s AND deleted_at IS NULL ORDER BY step DESC", (run,)
        ).fetchall()


def events(client: Client, run: str, kind: str) -> list[Event]:
    """Return the events of a run of one type."""
    return [each for each in client.events.list(run) if each.type == kind]


def updated(client: Client, run: str, since: datetime) -> bool:
    """Whether a run has reported an update that it made after `since`."""
    return any(
        at is not None and at > since
        for series in client.metrics.series(run, "Losses/Policy Loss", points=5000)
        for at in series.times
    )


def test_a_deployment_copied_while_it_trains_goes_on_elsewhere_from_its_newest_checkpoints_that_are_there(
    tmp_path: Path, artifacts: Folders | Buckets, sites: list[Site]
) -> None:
    here, elsewhere = sites
    copy = tmp_path / "copy"
    copy.mkdir()
    shared = {"LUDUS_STORAGE__PURGE_DELAY_SECONDS": "600"}

    cluster = Cluster(tmp_path / "home", **here.settings, **artifacts.live, **shared)
    games: list[Simulators] = []
    try:
        with cluster.client() as client:
            runs = [client.runs.create(CONFIG).id for _ in range(RUNS)]
            games = [Simulators(cluster.gateway, run) for run in runs]
            eventually(lambda: all(len(client.checkpoints.list(run)) >= KEPT for run in runs), "checkpoints", 300)
            execute(command("backup", 0, DATABASE=address(here.postgres), COPY=copy))
            cluster.slot(runs[0]).kill()

            def replaced() -> bool:
                saved = [each for each in events(client, runs[0], "checkpoint_saved") if each.attempt == 2]
                return len(saved) > KEPT

            eventually(replaced, "attempt 2 has replaced the checkpoints", 300)
            artifacts.back_up(copy)
    finally:
        for each in games:
            each.stop()
        cluster.stop()

    execute(command("restore", 0, DATABASE=address(elsewhere.postgres), COPY=copy))
    artifacts.restore(copy)
    known = {run: checkpoints_of(elsewhere.postgres, run) for run in runs}
    assert all(len(each) >= KEPT for each in known.values())
    (missing, place), (sound, _) = known[runs[0]][:2]
    artifacts.remove_a_file(place)
    began, since = time.monotonic(), datetime.now(UTC)
    cluster = Cluster(tmp_path / "home-elsewhere", **elsewhere.settings, **artifacts.restored, **shared)
    games = []
    try:
        with cluster.client() as client:
            games = [Simulators(cluster.gateway, run) for run in runs]
            eventually(lambda: all(updated(client, run, since) for run in runs), "every run is updated again", 300)
            log.info("restored", seconds_until_every_run_is_updated=round(time.monotonic() - began, 1))
            for run, newest in zip(runs, (sound, known[runs[1]][0][0]), strict=True):
                resumed = client.runs.attempts(run)[-1]

                def beyond(run: str = run, number: int = resumed.number) -> list[Event]:
                    return [each for each in events(client, run, "checkpoint_saved") if each.attempt == number]

                first = eventually(beyond, "the run stores a checkpoint again", 300)[0]
                assert resumed.resumed_from == newest
                assert first.data["step"] > client.checkpoints.get(run, newest).step
                assert client.checkpoints.verify(run, newest).sound
                assert client.runs.get(run).state == "RUNNING"
            (damaged,) = events(client, runs[0], "checkpoint_damaged")
            assert damaged.data["checkpoint_id"] == missing
    finally:
        for each in games:
            each.stop()
        cluster.stop()
