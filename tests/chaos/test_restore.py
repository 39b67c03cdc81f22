"""The drill of docs/operations.md: a deployment is copied while it trains, and its run goes on elsewhere from the copy.

The commands are those of the page. The copies are made at a bad moment: between that of the database and that of the
files the run loses its worker, goes on in the next attempt, and gives up every checkpoint that the first copy knows.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ludus.client import Client
from ludus.schemas import Event
from tests.chaos.cluster import Cluster, Simulators
from tests.chaos.servers import Postgres, Redis, program
from tests.e2e.stack import cartpole
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
KEPT = 3
CONFIG = cartpole(max_steps=10**7, keep_checkpoints=KEPT, checkpoint_interval=3000, summary_freq=3000)


def commands(block: str, **places: object) -> list[str]:
    """Return the lines of a block of the page, with the words in capitals replaced."""
    (script,) = re.findall(rf"<!-- tested: {block} -->\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for name, place in places.items():
        script, count = re.subn(rf"\b{name}\b", str(place), script)
        assert count, f"{block} has no {name}"
    return str(script).splitlines()


def execute(line: str) -> None:
    """Execute a line of the page in a shell."""
    path = f"{Path(program('pg_dump')).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"


class Folders:
    """Artifacts in a folder, copied with the second lines of the page's blocks."""

    def __init__(self, folder: Path) -> None:
        program("rsync")
        self._live, self._restored = folder / "live", folder / "restored"
        self.live = {"LUDUS_STORAGE__ROOT": str(self._live)}
        self.restored = {"LUDUS_STORAGE__ROOT": str(self._restored)}

    def copy(self, line: str) -> None:
        execute(line.replace("ARTIFACTS", str(self._live)))

    def restore(self, line: str) -> None:
        execute(line.replace("ARTIFACTS", str(self._restored)))

    def remove(self, path: str) -> None:
        (self._restored / path).unlink()


@pytest.fixture
def artifacts(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def servers() -> Iterator[list[tuple[Postgres, Redis]]]:
    """PostgreSQL and Redis twice: of the deployment, and elsewhere."""
    made = []
    folders = [Path(tempfile.mkdtemp()) for _ in range(2)]  # pytest's are closed to PostgreSQL's user
    try:
        for folder in folders:
            folder.chmod(0o755)
            made.append((Postgres(folder), Redis()))
            for server in made[-1]:
                server.start()
        yield made
    finally:
        for server in (each for pair in made for each in pair):
            server.crash()
        for folder in folders:
            shutil.rmtree(folder)


def path_of(server: Postgres, checkpoint: str) -> str:
    """Return where the files of a checkpoint are in the artifact store."""
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        (path,) = connection.execute("SELECT path FROM checkpoints WHERE id = %s", (checkpoint,)).fetchone() or ("",)
    return str(path)


def events(client: Client, run: str, kind: str) -> list[Event]:
    """Return the events of a run of one type."""
    return [each for each in client.events.list(run) if each.type == kind]


def test_a_deployment_copied_while_it_trains_goes_on_elsewhere_from_its_newest_checkpoint_that_is_there(
    tmp_path: Path, artifacts: Folders, servers: list[tuple[Postgres, Redis]]
) -> None:
    (here, queue), (elsewhere, other_queue) = servers
    copy = tmp_path / "copy"
    copy.mkdir()
    addresses = {"DATABASE": here.url.replace("+psycopg", ""), "COPY": copy}
    dump, copy_files = commands("backup", **addresses)
    restore_database, restore_files = commands(
        "restore", **{**addresses, "DATABASE": elsewhere.url.replace("+psycopg", "")}
    )
    shared = {"LUDUS_STORAGE__PURGE_DELAY_SECONDS": "600"}

    cluster = Cluster(
        tmp_path / "home",
        LUDUS_DATABASE__URL=here.url,
        LUDUS_QUEUE__BROKER_URL=queue.url,
        **artifacts.live,
        **shared,
    )
    simulators = None
    try:
        with cluster.client() as client:
            run = client.runs.create(CONFIG).id
            simulators = Simulators(cluster, run)
            eventually(lambda: len(client.checkpoints.list(run)) >= KEPT, "checkpoints", 300)
            execute(dump)
            cluster.slot(run).kill()

            def replaced() -> bool:
                saved = [each for each in events(client, run, "checkpoint_saved") if each.attempt == 2]
                return len(saved) > KEPT

            eventually(replaced, "attempt 2 has replaced the checkpoints", 300)
            artifacts.copy(copy_files)
    finally:
        if simulators is not None:
            simulators.stop()
        cluster.stop()

    execute(restore_database)
    artifacts.restore(restore_files)
    cluster = Cluster(
        tmp_path / "home-elsewhere",
        LUDUS_DATABASE__URL=elsewhere.url,
        LUDUS_QUEUE__BROKER_URL=other_queue.url,
        **artifacts.restored,
        **shared,
    )
    try:
        with cluster.client() as client:
            known = client.checkpoints.list(run)
            assert len(known) >= KEPT
            missing, newest = known[:2]
            artifacts.remove(f"{path_of(elsewhere, missing.id)}/{missing.files[0].name}")
            simulators = Simulators(cluster, run)

            def beyond() -> list[Event]:
                return [each for each in events(client, run, "checkpoint_saved") if (each.attempt or 0) > 1]

            first = eventually(beyond, "the run stores a checkpoint again", 300)[0]
            attempt = client.runs.attempts(run)[-1]
            assert (attempt.number, attempt.resumed_from) == (first.attempt, newest.id)
            (damaged,) = events(client, run, "checkpoint_damaged")
            assert damaged.data["checkpoint_id"] == missing.id
            assert first.data["step"] > newest.step
            assert client.checkpoints.verify(run, newest.id).sound
            assert client.runs.get(run).state == "RUNNING"
    finally:
        simulators.stop()
        cluster.stop()
