"""The janitor: rows first, then files; restartable anywhere; what belongs to nothing goes, and nothing else."""

import os
import sqlite3
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert

from ludus.config.run import RunConfig
from server.checkpoints.models import Checkpoint
from server.checkpoints.retention import (
    Candidate,
    Limits,
    Retention,
    RetentionRepository,
    beyond_age,
    beyond_count,
    beyond_size,
    spared,
)
from server.checkpoints.service import CheckpointService
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.repository import GivenUpFile, GivenUpFileRepository
from server.kit.db.database import Database
from server.kit.errors import StorageRefused, StorageUnavailable
from server.kit.jobs import JobLoop
from server.kit.settings import StorageSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp, make_checkpoint, make_claim, make_ledger, make_run, read_run

OLD = 30 * 86400.0
NO_FILES = {"attempt": 1, "steps": {}, "reason": "interval", "size": 1, "files": [], "metrics": {}, "created_at": 1.0}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


def janitor(database: Database, store: FolderStore, **settings: Any) -> Retention:
    return Retention(database, store, StorageSettings(**settings))


def save(ledger: AttemptLedger, store: FolderStore, folder: Path, step: int, run: str = "x", **overrides: Any) -> str:
    """Publish a checkpoint of 100 bytes, and enter it."""
    source = folder / f"{run}-{step}"
    source.mkdir()
    (source / "state.json").write_bytes(b"." * 100)
    path = f"runs/{run}/1/checkpoints/{step}"
    return ledger.checkpoints.add(make_checkpoint(step, path=path, files=store.publish(source, path), **overrides))


def stored(tmp_path: Path) -> set[str]:
    return {file.parent.name for file in (tmp_path / "artifacts").rglob("state.json")}


def age(database: Database, *ids: str, seconds: float = OLD) -> None:
    with database.write() as session:
        for each in ids:
            session.get_one(Checkpoint, each).created_at -= seconds


def test_the_files_of_what_is_given_up_go_and_its_row_stays(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    ledger = make_ledger(database, name="run")
    ids = [save(ledger, store, tmp_path, step) for step in (100, 200, 300)]
    assert ledger.checkpoints.retire(1) == ids[:2]
    assert stored(tmp_path) == {"100", "200", "300"}

    assert janitor(database, store).purge() == 2

    assert stored(tmp_path) == {"300"}
    with database.read() as session:
        assert [session.get_one(Checkpoint, each).purged_at is None for each in ids] == [False, False, True]
    assert janitor(database, store).purge() == 0


def test_files_stay_for_the_delay_so_that_a_copy_has_what_an_older_copy_of_the_database_names(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    ledger = make_ledger(database, name="run")
    first, _ = (save(ledger, store, tmp_path, step) for step in (100, 200))
    ledger.checkpoints.retire(1)

    assert janitor(database, store, purge_delay_seconds=3600).purge() == 0
    assert stored(tmp_path) == {"100", "200"}
    with database.write() as session:
        session.get_one(Checkpoint, first).deleted_at -= 3601  # type: ignore[operator]  # it was given up
    assert janitor(database, store, purge_delay_seconds=3600).purge() == 1


def test_a_janitor_that_is_killed_between_files_and_row_is_followed_by_one_that_ends_the_work(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    ledger = make_ledger(database, name="run")
    for step in (100, 200):
        save(ledger, store, tmp_path, step)
    ledger.checkpoints.retire(1)
    store.delete("runs/x/1/checkpoints/100")

    assert janitor(database, store).purge() == 1


def test_a_store_that_refuses_one_deletion_does_not_keep_the_others_and_one_that_is_away_is_waited_for(
    database: Database, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_ledger(database, name="run")
    for step in (100, 200, 300):
        save(ledger, store, tmp_path, step)
    ledger.checkpoints.retire(1)
    delete = store.delete

    def refuse(path: str) -> None:
        if path.endswith("/100"):
            raise StorageRefused("not yours", "make it yours")
        delete(path)

    def away(path: str) -> None:
        raise StorageUnavailable(path)

    monkeypatch.setattr(store, "delete", away)
    JobLoop(janitor(database, store).jobs(), 0.0).tick()
    assert stored(tmp_path) == {"100", "200", "300"}
    monkeypatch.setattr(store, "delete", refuse)
    JobLoop(janitor(database, store).jobs(), 0.0).tick()
    assert stored(tmp_path) == {"100", "300"}
    monkeypatch.setattr(store, "delete", delete)
    JobLoop(janitor(database, store).jobs(), 0.0).tick()
    assert stored(tmp_path) == {"300"}


def test_what_is_too_old_is_given_up_but_for_the_newest_the_best_the_pinned_and_the_used(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    config = {"behaviors": {"CartPole": {}}, "checkpoint_settings": {"keep_best": {"metric": "win_rate"}}}
    run = make_run(database, name="run", config=config)
    ledger = AttemptLedger(database, make_claim(database))
    ids = [save(ledger, store, tmp_path, step) for step in (100, 200, 300, 400, 500)]
    best, pinned, used, old, newest = ids
    with database.write() as session:
        CheckpointService(session).score(run.id, best, "win_rate", 0.9)
        CheckpointService(session).score(run.id, old, "win_rate", 0.2)
        CheckpointService(session).pin(run.id, pinned, pinned=True)
    with database.write() as session:
        other = (
            RunService(session, RecordingWakeUp())
            .create(NewRun(RunConfig.model_validate(config), name="other", checkpoints=[used]))
            .id
        )
    age(database, *ids)

    assert janitor(database, store).retain() == []  # no limit is set
    assert janitor(database, store, retention_seconds=86400).retain() == [old]

    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel(other)
        CheckpointService(session).pin(run.id, pinned, pinned=False)
    assert sorted(janitor(database, store, retention_seconds=86400).retain()) == sorted([pinned, used])
    with database.read() as session:
        told = [event for event in EventRepository(session).page(run.id) if event.type == "checkpoints_deleted"]
    assert [event.data["rules"] for event in told] == [["age"], ["age"]]
    assert told[0].data["checkpoint_ids"] == [old]
    assert newest


def test_what_is_too_much_goes_from_the_oldest_of_all_runs_on(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    ledgers = {name: make_ledger(database, name=name) for name in ("a", "b")}
    ids = {
        (name, step): save(ledgers[name], store, tmp_path, step, run=name) for step in (100, 200) for name in ledgers
    }
    age(database, ids["b", 100])
    listener = janitor(database, store, retention_bytes=350)

    assert listener.retain() == [ids["b", 100]]
    assert listener.retain() == []
    assert janitor(database, store, retention_bytes=0).retain() == [ids["a", 100]]  # the newest of each stay
    listener.purge()
    assert read_run(database, "a").id


@pytest.mark.long
def test_the_work_of_a_plan_grows_in_proportion_to_the_number_of_checkpoints(database: Database) -> None:
    """Four times the checkpoints take four times the calls and steps of SQLite, not sixteen times."""
    run = make_run(database, name="run").id

    def plan_with(first: int, last: int) -> int:
        rows = [
            {**NO_FILES, "id": f"ckpt_{step:06}", "run_id": run, "step": step, "path": f"runs/{run}/1/{step}"}
            for step in range(first, last)
        ]
        with database.write() as session:
            session.connection().execute(insert(Checkpoint), rows)
        with database.read() as session:
            driver = session.connection().connection.driver_connection
            work = count()
            if isinstance(driver, sqlite3.Connection):  # PostgreSQL does not say how many steps it takes
                driver.set_progress_handler(lambda: next(work) and None, 1)
            sys.setprofile(lambda *_: next(work) and None)
            try:
                planned = RetentionRepository(session).plan(Limits(OLD, 0))
            finally:
                sys.setprofile(None)
                if isinstance(driver, sqlite3.Connection):
                    driver.set_progress_handler(None, 1)
            assert len(planned) == last - 2  # all but the newest one
            return next(work)

    few = plan_with(1, 1500)

    assert plan_with(1500, 6000) < 5 * few


def test_a_file_that_is_given_up_is_no_orphan_until_the_delay_is_over(
    database: Database, store: FolderStore, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("long ago")
    for folder in ("demonstrations/dem_1", "checkpoints/ckpt_1"):
        store.publish(source, f"{folder}/file")
    for file in (tmp_path / "artifacts").rglob("file"):
        os.utime(file, (time.time() - OLD, time.time() - OLD))
    with database.write() as session:
        GivenUpFileRepository(session).give_up("demonstrations/dem_1")
    delayed = janitor(database, store, purge_delay_seconds=3600)

    assert (delayed.purge(), delayed.collect()) == (0, ["checkpoints/ckpt_1"])
    assert [file.path for file in store.files("demonstrations")] == ["demonstrations/dem_1/file"]
    with database.write() as session:
        session.get_one(GivenUpFile, "demonstrations/dem_1").given_up_at -= 3601
    assert (delayed.purge(), delayed.purge()) == (1, 0)

    assert list(store.files("demonstrations")) == []


def test_only_old_files_that_no_row_names_are_orphans(database: Database, store: FolderStore, tmp_path: Path) -> None:
    ledger = make_ledger(database, name="run")
    save(ledger, store, tmp_path, 100)
    (tmp_path / "log").write_text("a log is nobody's orphan")
    store.publish(tmp_path / "log", "runs/x/1/logs/trainer.log")
    source = tmp_path / "source"
    source.mkdir()
    (source / "state.json").write_text("{}")
    for orphan in ("runs/x/1/checkpoints/old-1", "runs/x/1/checkpoints/new-1", "runs/y/3/checkpoints/old-2"):
        store.publish(source, orphan)
    for upload in ("checkpoints/ckpt_old", "demonstrations/dem_old"):
        store.publish(source, upload)
    long_ago = time.time() - 2 * 86400
    for file in (tmp_path / "artifacts").rglob("*"):
        if file.is_file() and "new-1" not in str(file):
            os.utime(file, (long_ago, long_ago))

    assert janitor(database, store).collect() == [
        "checkpoints/ckpt_old",
        "demonstrations/dem_old",
        "runs/x/1/checkpoints/old-1",
        "runs/y/3/checkpoints/old-2",
    ]

    left = {file.parent.name for file in (tmp_path / "artifacts").rglob("*") if file.is_file()}
    assert left == {"100", "logs", "new-1"}


def checkpoint(step: int, **overrides: object) -> Candidate:
    made = Candidate(
        id=f"ckpt_{step}",
        run_id="run_1",
        order=(1, step, float(step), f"ckpt_{step}"),
        created_at=float(step),
        step=step,
        size=10,
        final=False,
        score=None,
        damaged=False,
        held=False,
    )
    return replace(made, **overrides)  # type: ignore[arg-type]


def steps(found: list[Candidate]) -> list[int]:
    return [each.step for each in found]


def test_the_newest_k_stay() -> None:
    every = [checkpoint(step) for step in (100, 200, 300, 400)]

    assert steps(beyond_count(every, 2, 0)) == [100, 200]
    assert beyond_count(every, 4, 0) == beyond_count(every, 0, 0) == []


def test_the_best_k_stay_beside_the_newest_and_of_equals_the_newer() -> None:
    every = [checkpoint(step, score=score) for step, score in ((100, 7.0), (200, 9.0), (300, 7.0), (400, 1.0))]

    assert steps(beyond_count(every, 1, 1)) == [100, 300]
    assert steps(beyond_count(every, 1, 2)) == [100]


def test_final_and_held_ones_stay() -> None:
    every = [checkpoint(100, held=True), checkpoint(200, final=True), checkpoint(300), checkpoint(400)]

    assert steps(beyond_count(every, 1, 0)) == [300]


def test_a_damaged_one_neither_counts_as_newest_nor_as_best() -> None:
    every = [checkpoint(100), checkpoint(200, damaged=True), checkpoint(300), checkpoint(400, damaged=True, score=9.0)]

    assert steps(beyond_count(every, 1, 1)) == [100, 200]
    assert spared(every, 1) == {"ckpt_300"}


def test_the_newest_of_a_later_attempt_is_newest_even_at_a_lower_step() -> None:
    first, second = checkpoint(300), checkpoint(200, order=(2, 200, 500.0, "ckpt_200"))

    assert spared([first, second], 0) == {"ckpt_200"}


def test_age_and_size_take_the_oldest_first_and_no_more_than_they_must() -> None:
    every = [checkpoint(step) for step in (300, 100, 400, 200)]

    assert steps(beyond_age(every, {"ckpt_100"}, before=300.0)) == [200]
    assert steps(beyond_size(every, {"ckpt_100"}, limit=25)) == [200, 300]
    assert beyond_size(every, set(), limit=40) == []
    assert steps(beyond_size(every, {"ckpt_400"}, limit=0)) == [100, 200, 300]


candidates = st.lists(
    st.builds(
        checkpoint,
        st.integers(1, 50),
        score=st.none() | st.floats(-5, 5),
        damaged=st.booleans(),
        held=st.booleans(),
        final=st.booleans(),
    ),
    unique_by=lambda each: each.step,
)


@given(candidates, st.integers(1, 5), st.integers(0, 3), st.integers(0, 200))
def test_no_rule_takes_what_is_spared(every: list[Candidate], keep: int, best: int, limit: int) -> None:
    stay = spared(every, best)
    good = [each for each in every if not each.damaged]

    for gone in (beyond_count(every, keep, best), beyond_age(every, stay, 60.0), beyond_size(every, stay, limit)):
        assert not stay & {each.id for each in gone}
        assert not good or max(good, key=lambda each: each.order) not in gone
        assert not any(each.held for each in gone)
    left = [each for each in every if each not in beyond_count(every, keep, best)]
    assert len([each for each in left if not each.damaged]) >= min(keep, len(good))
