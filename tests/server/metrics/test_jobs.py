"""Old metrics: they move to Parquet files, from where the API reads them back, and are thinned."""

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sqlalchemy import func, select, update

from ludus.client import ApiError, Client
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import StorageUnavailable
from server.kit.settings import MetricsSettings
from server.metrics.jobs import MetricRetention
from server.metrics.models import MetricArchive, MetricChunk
from server.metrics.points import CHUNK_POINTS, Points, keep, thinned
from server.metrics.reader import MetricReader
from server.runs.models import Run
from tests.factories import pack_metrics
from tests.server.app.world import Trainer, World, open_world

REWARD = "Environment/Cumulative Reward"
DAY = 86400.0
SOON = 1e-12
"""Days after which everything is old."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One of its own for each test: a job takes all runs that are old."""
    with open_world(tmp_path / "server") as world:
        yield world


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with Client(world.server) as client:
        yield client


def ended(world: World, name: str, points: int = 300) -> Trainer:
    """Have a run record two metrics, one of them with a gap, and end."""
    trainer = world.claim(world.create(name=name)["id"]).start()
    trainer.measure(REWARD, [math.sin(number / 9) if number % 7 else math.nan for number in range(points)])
    trainer.measure("Policy/Entropy", [1 / number for number in range(1, points)])
    trainer.finish()
    pack_metrics(world.services.database)
    return trainer


def job(world: World, **rules: object) -> MetricRetention:
    settings = MetricsSettings.model_validate({"archive_days": SOON, **rules})
    return MetricRetention(world.services.database, world.services.artifacts, settings)


def chunks(database: Database, run_id: str) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).where(MetricChunk.run_id == run_id)) or 0


def archive_of(world: World, run_id: str) -> MetricArchive | None:
    with world.services.database.read() as session:
        return session.get(MetricArchive, run_id)


def files(world: World, run_id: str) -> list[str]:
    return [file.path for file in world.services.artifacts.files(f"runs/{run_id}/metrics")]


def test_an_archived_run_answers_as_before_and_its_rows_are_gone(world: World, client: Client, tmp_path: Path) -> None:
    run_id = ended(world, "archived").run_id
    other = ended(world, "other").run_id

    def answers() -> list[object]:
        return [
            client.metrics.list(run_id),
            client.metrics.series(run_id, REWARD, points=40, smoothing=0.5, from_step=500),
            client.metrics.series(run_id, "Policy/Entropy", points=30, after_step=1000),
            client.metrics.compare([run_id, other], [REWARD, "Policy/Entropy"], points=50),
            client.runs.compare([run_id, other], [f"{REWARD}@max"]).runs[0].metrics,
            client.metrics.download(run_id, tmp_path / "x.parquet").read_bytes(),
        ]

    before = answers()
    assert job(world, project_archive_days={"default": None}).archive() == 0, "the project's rule goes first"
    with world.services.database.write() as session:
        session.execute(update(Run).where(Run.id == other).values(finished_at=None))
    assert job(world).archive() == 1
    assert chunks(world.services.database, run_id) == 0
    assert chunks(world.services.database, other) > 0

    assert answers() == before


def test_an_archive_in_the_folder_is_read_by_pandas_and_by_polars(world: World, client: Client) -> None:
    run_id = ended(world, "archived").run_id
    (series,) = client.metrics.series(run_id, REWARD, points=5000)
    job(world).archive()
    file = world.services.settings.storage.root / files(world, run_id)[0]

    frame = pd.read_parquet(file)
    table = pl.read_parquet(file)

    rows = frame[frame["key"] == REWARD]
    others = table.filter(pl.col("key") == REWARD)
    assert len(series.steps) == 300
    for steps, values in ((rows["step"], rows["value"]), (others["step"], others["value"])):
        assert steps.to_list() == [*series.steps]
        assert [None if math.isnan(value) else value for value in values.to_list()] == [*series.values]
    assert set(frame["run_id"]) == set(table["run_id"]) == {run_id}


def aged(world: World, project: str, days: float) -> str:
    """Have a run of a project end so many days ago, after as long a life; return its id."""
    run_id = ended(world, f"{project}-{days:g}", points=1000).run_id
    with world.services.database.write() as session:
        then = {"finished_at": Run.finished_at - days * DAY, "started_at": Run.started_at - days * DAY}
        session.execute(update(Run).where(Run.id == run_id).values(project=project, **then))
    return run_id


@pytest.mark.long
def test_projects_have_lives_of_their_own_in_the_database(world: World) -> None:
    runs = {
        (project, days): aged(world, project, days) for project in ("bots", "league", "default") for days in (2, 10, 40)
    }
    rules = {"archive_days": 7, "project_archive_days": {"bots": 1, "league": 30}}

    assert job(world, **rules).archive() == 6

    archived = {place for place, run_id in runs.items() if archive_of(world, run_id) is not None}
    bots = {("bots", 2), ("bots", 10), ("bots", 40)}
    assert archived == {*bots, ("league", 40), ("default", 10), ("default", 40)}


@pytest.mark.long
@pytest.mark.parametrize("archived", [False, True])
def test_projects_have_lives_of_their_own_for_all_points(world: World, archived: bool) -> None:
    runs = {
        (project, days): aged(world, project, days) for project in ("bots", "league", "default") for days in (2, 10)
    }
    if archived:
        assert job(world).archive() == len(runs)
    rules = {"full_days": 7, "project_full_days": {"bots": 1, "league": None}, "thinned_points": 100}

    assert job(world, **rules).thin() == 3

    reader = MetricReader(world.services.database, world.services.artifacts)
    totals = {place: reader.series([run_id], [REWARD])[0].total for place, run_id in runs.items()}
    assert {place for place, total in totals.items() if total <= 100} == {("bots", 2), ("bots", 10), ("default", 10)}
    assert {total for total in totals.values() if total > 100} == {1000}


class Down(FolderStore):
    """A store that does not answer."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Fail."""
        raise StorageUnavailable(f"no answer: {source} {path}")


def test_a_store_that_does_not_answer_loses_nothing(world: World, client: Client) -> None:
    run_id = ended(world, "unlucky").run_id
    database, settings = world.services.database, MetricsSettings(archive_days=SOON)
    before = client.metrics.series(run_id, REWARD)

    with pytest.raises(StorageUnavailable):
        MetricRetention(database, Down(world.services.settings.storage.root), settings).archive()
    assert (archive_of(world, run_id), chunks(database, run_id)) == (None, 2)
    assert client.metrics.series(run_id, REWARD) == before

    job(world).archive()
    damage(world, run_id)
    with pytest.raises(ApiError, match="is damaged"):
        client.metrics.series(run_id, REWARD)


def damage(world: World, run_id: str) -> None:
    """Change a byte in the middle of a run's file."""
    (file,) = files(world, run_id)
    damaged = world.services.settings.storage.root / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)


def test_a_damaged_file_keeps_no_other_run_from_being_thinned(world: World, client: Client) -> None:
    broken, whole = (ended(world, name, points=1000).run_id for name in ("broken", "whole"))
    job(world).archive()
    damage(world, broken)

    job(world, full_days=SOON, thinned_points=100).thin()

    (series,) = client.metrics.series(whole, REWARD, points=5000)
    assert series.total <= 100


def test_a_job_that_was_killed_behind_its_commit_is_finished_by_the_next(world: World) -> None:
    run_id = ended(world, "killed").run_id
    stopped = job(world)
    stopped._drop = lambda _run_id: None  # type: ignore[method-assign]  # killed before it deletes the rows

    stopped.archive()
    assert chunks(world.services.database, run_id) > 0
    job(world).archive()

    assert chunks(world.services.database, run_id) == 0


def test_a_run_that_was_deleted_leaves_no_file(world: World, client: Client) -> None:
    run_id = ended(world, "deleted").run_id
    job(world).archive()
    assert len(files(world, run_id)) == 1

    client.runs.delete(run_id)
    world.purge()

    assert (files(world, run_id), archive_of(world, run_id)) == ([], None)


def test_old_points_of_an_archived_run_are_thinned_once(world: World, client: Client) -> None:
    run_id = ended(world, "thinned", points=1000).run_id
    job(world).archive()
    before = client.metrics.list(run_id)
    extremes = client.runs.compare([run_id], [f"{REWARD}@max", f"{REWARD}@min"]).runs[0].metrics
    rules = {"full_days": SOON, "thinned_points": 100}

    assert job(world, **rules).thin() >= 1
    assert job(world, **rules).thin() == 0

    (series,) = client.metrics.series(run_id, REWARD, points=5000)
    assert series.total <= 100
    assert series.steps[0] == 100
    assert series.steps[-1] == 100_000
    assert client.metrics.list(run_id) == before
    assert max(value for value in series.values if value is not None) == extremes[f"{REWARD}@max"]
    assert min(value for value in series.values if value is not None) == extremes[f"{REWARD}@min"]
    world.purge()
    assert len(files(world, run_id)) == 1


def test_a_copy_of_the_rows_before_and_of_the_files_after_a_file_is_thinned_has_the_series(
    world: World, client: Client, tmp_path: Path
) -> None:
    run_id = ended(world, "saved", points=1000).run_id
    job(world).archive()
    before = client.metrics.series(run_id, REWARD, points=5000)
    root = world.services.settings.storage.root
    database = Path(world.services.database.url.database or "")

    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(tmp_path / "rows.db")) as target:
        source.backup(target)
    assert job(world, full_days=SOON, thinned_points=100).thin() >= 1
    assert world.purge(purge_delay_seconds=3600) == 0
    shutil.copytree(root, tmp_path / "artifacts")
    world.purge()
    (thinned,) = client.metrics.series(run_id, REWARD, points=5000)
    restored = Database(f"sqlite:///{tmp_path / 'rows.db'}")
    found = MetricReader(restored, FolderStore(tmp_path / "artifacts")).series([run_id], [REWARD], points=5000)
    restored.close()

    assert thinned.total <= 100, "the server itself has the new file"
    assert len(files(world, run_id)) == 1
    assert [each.steps.tolist() for each in found] == [[*each.steps] for each in before]
    assert found[0].total == 1000


def test_a_file_that_no_row_has_named_goes_with_the_next_archive_and_a_former_one_stays(world: World) -> None:
    run_id = ended(world, "untidy", points=1000).run_id
    job(world).archive()
    (former,) = files(world, run_id)
    leftover = world.services.settings.storage.root / Path(former).with_name("met_killed.parquet")
    leftover.write_bytes(b"a job was killed before it entered this")

    job(world, full_days=SOON, thinned_points=200).thin()
    job(world, full_days=SOON, thinned_points=100).thin()

    assert former in files(world, run_id)
    assert len(files(world, run_id)) == 3
    assert not leftover.exists()


def test_old_points_of_a_live_run_are_thinned_and_it_goes_on(world: World, client: Client) -> None:
    trainer = world.claim(world.create(name="goes-on")["id"]).start()
    trainer.measure(REWARD, [float(number) for number in range(3 * CHUNK_POINTS)])
    pack_metrics(world.services.database)

    assert job(world, full_days=SOON, thinned_points=100).thin() >= 1
    trainer.measure(REWARD, [7.0, 8.0], first=1_000_000)
    pack_metrics(world.services.database)

    (series,) = client.metrics.series("goes-on", REWARD, points=5000)
    assert series.total <= 52, "half of them: so it is not thinned at each further point"
    assert series.steps[-3:] == (3 * CHUNK_POINTS * 100, 1_000_000, 1_000_100)
    assert client.metrics.list("goes-on")[0].value == 8.0


def test_what_is_kept_are_the_ends_and_the_outline() -> None:
    values = np.zeros(10_000)
    values[4321], values[1234], values[7777] = 5.0, -3.0, math.nan

    kept = keep(values, 100).tolist()

    assert {0, 4321, 1234, 9999} <= {*kept}
    assert len(kept) <= 100
    assert kept == sorted({*kept})
    assert keep(values[:100], 100).tolist() == list(range(100))


def test_only_points_older_than_the_time_are_thinned_whatever_attempt_they_are_of() -> None:
    steps = np.arange(1000)
    points = Points(steps, steps.astype(float), np.sin(steps))

    fewer = thinned({1: points[:600], 3: points[600:]}, before=900.0, limit=200, again=False)

    assert fewer is not None
    assert fewer[3].steps[-100:].tolist() == list(range(900, 1000))
    assert len(fewer[1]) + len(fewer[3]) <= 300
    assert thinned({1: points}, before=200.0, limit=200, again=True) is None
