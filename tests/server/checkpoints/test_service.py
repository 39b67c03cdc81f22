"""Uploaded checkpoints, and those that configurations name."""

from pathlib import Path
from typing import Any

import pytest

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState, StopReason
from server.checkpoints.repository import UploadedCheckpointRepository
from server.checkpoints.retention import held
from server.checkpoints.service import CheckpointService
from server.checkpoints.uploads import inspect, publish
from server.config.resolution import resolve
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import RunService
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp, give_up, make_checkpoint, make_claim, make_ledger, read_run
from tests.server.checkpoints.test_uploads import SAC

UNKNOWN = f"ckpt_{'0' * 26}"


def add(database: Database, folder: Path, name: str | None = None, behavior: str | None = None) -> str:
    """Store an uploaded checkpoint; return its id."""
    with publish(FolderStore(folder), SAC, inspect(SAC)) as stored, database.write() as session:
        row = CheckpointService(session).add(stored, name, behavior)
    assert stored.kept
    return row.id


def check(database: Database, **behaviors: str) -> list[str]:
    document = {"behaviors": {name: {"initialize_from": each} for name, each in behaviors.items()}}
    with database.write() as session:
        return CheckpointService(session).check(resolve(document), lock=True)


def problems(database: Database, **behaviors: str) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as caught:
        check(database, **behaviors)
    return {problem.path: problem.code for problem in caught.value.problems}


def use(database: Database, *checkpoints: str) -> str:
    """Queue a run that begins with checkpoints; return its id."""
    config: dict[str, Any] = resolve({"behaviors": {"A": {}}}).model_dump(mode="json")
    with database.write() as session:
        return (
            RunService(session, RecordingWakeUp())
            .create(NewRun(RunConfig.model_validate(config), checkpoints=checkpoints))
            .id
        )


def test_a_row_says_what_the_file_holds(database: Database, tmp_path: Path) -> None:
    checkpoint = add(database, tmp_path, "old-one", "Striker")

    with database.read() as session:
        row = UploadedCheckpointRepository(session).get(checkpoint)
    assert (row.name, row.behavior, row.format) == ("old-one", "Striker", "mlagents")
    assert row.modules[:2] == ["Policy", "Optimizer:q_network"]
    assert (tmp_path / row.path / row.file).read_bytes() == SAC.read_bytes()
    assert row.size == SAC.stat().st_size


def test_one_without_a_name_is_called_like_its_id(database: Database, tmp_path: Path) -> None:
    checkpoint = add(database, tmp_path)

    with database.read() as session:
        assert UploadedCheckpointRepository(session).get(checkpoint).name == checkpoint


def test_where_the_row_fails_the_file_goes(database: Database, tmp_path: Path) -> None:
    def fail() -> None:
        with publish(FolderStore(tmp_path), SAC, inspect(SAC)) as stored, database.write() as session:
            CheckpointService(session).add(stored, None, None)
            raise RuntimeError("no row")

    with pytest.raises(RuntimeError):
        fail()

    assert not list((tmp_path / "checkpoints").glob("*"))


def test_checkpoints_of_runs_and_uploaded_ones_may_be_named(database: Database, tmp_path: Path) -> None:
    uploaded, of_run = add(database, tmp_path), make_ledger(database, name="run").checkpoints.add(make_checkpoint())

    assert check(database, A=uploaded, B=of_run) == sorted([uploaded, of_run])


def test_unknown_checkpoints_are_told_with_their_paths(database: Database) -> None:
    assert problems(database, A=UNKNOWN, B=UNKNOWN) == {
        "behaviors.A.initialize_from": "not_found",
        "behaviors.B.initialize_from": "not_found",
    }


def test_the_template_of_all_behaviors_counts_too(database: Database) -> None:
    config = resolve({"default_settings": {"initialize_from": UNKNOWN}, "behaviors": {"A": {"initialize_from": None}}})

    with database.write() as session, pytest.raises(InvalidConfig) as caught:
        CheckpointService(session).check(config)

    assert [problem.path for problem in caught.value.problems] == ["default_settings.initialize_from"]


def test_a_checkpoint_without_its_files_is_refused(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    gone = ledger.checkpoints.add(make_checkpoint())
    give_up(database, gone)

    assert problems(database, A=gone) == {"behaviors.A.initialize_from": "not_found"}


def assign_opponents(database: Database, *opponents: str, behavior: str = "A") -> list[str]:
    config = resolve({"behaviors": {behavior: {"self_play": {"opponents": list(opponents)}}}})
    with database.write() as session:
        return CheckpointService(session).check(config, lock=True)


def test_opponents_are_checkpoints_of_runs_and_snapshots_in_them(database: Database) -> None:
    of_run = make_ledger(database, name="run").checkpoints.add(make_checkpoint())

    assert assign_opponents(database, of_run, f"{of_run}#3") == [of_run]


def test_opponents_that_cannot_be_are_told_with_their_paths(database: Database, tmp_path: Path) -> None:
    ledger = make_ledger(database, name="run")
    several = ledger.checkpoints.add(make_checkpoint(steps={"Hider": 500, "Seeker": 500}))
    gone = ledger.checkpoints.add(make_checkpoint(path="runs/x/1/checkpoints/2"))
    give_up(database, gone)
    uploaded = add(database, tmp_path)

    with pytest.raises(InvalidConfig) as caught:
        assign_opponents(database, f"{UNKNOWN}#2", uploaded, gone, several)

    told = {problem.path: (problem.code, problem.message) for problem in caught.value.problems}
    key = "behaviors.A.self_play.opponents"
    assert {path: code for path, (code, _) in told.items()} == {
        f"{key}[0]": "not_found",
        f"{key}[1]": "contradiction",
        f"{key}[2]": "not_found",
        f"{key}[3]": "contradiction",
    }
    assert "opponents are policies of runs" in told[f"{key}[1]"][1]
    assert "no behavior 'A', but Hider, Seeker" in told[f"{key}[3]"][1]


@pytest.mark.parametrize(
    ("opponents", "code", "path"),
    [
        (["ckpt_short"], "invalid_value", "opponents[0]"),
        ([f"{UNKNOWN}#-1"], "invalid_value", "opponents[0]"),
        ([f"{UNKNOWN}#1", f"{UNKNOWN}#1"], "invalid_value", "opponents"),
    ],
)
def test_opponents_that_are_no_names_or_named_twice_are_refused(opponents: list[str], code: str, path: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolve({"behaviors": {"A": {"self_play": {"opponents": opponents}}}})

    (problem,) = caught.value.problems
    assert (problem.path, problem.code) == (f"behaviors.A.self_play.{path}", code)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"self_play": {"opponents": ["ckpt_bad"]}}, "(ckpt_...#3)"),
        ({"self_play": {"ladder": "-"}}, "the name of a ladder"),
        ({"initialize_from": "bad"}, "the id of a checkpoint (ckpt_...)"),
        ({"trainer_type": "clone", "demonstrations": ["bad"]}, "the id of an uploaded demonstration (dem_...)"),
    ],
)
def test_what_is_no_id_is_told_what_it_must_be(section: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolve({"behaviors": {"A": section}})

    assert words in caught.value.problems[0].message


def test_a_checkpoint_that_a_run_plays_against_is_kept_until_that_run_has_ended(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    old, *_ = (ledger.checkpoints.add(make_checkpoint(path=f"runs/x/1/checkpoints/{number}")) for number in range(3))
    config = resolve({"behaviors": {"A": {"self_play": {"opponents": [f"{old}#1"]}}}})
    with database.write() as session:
        named = CheckpointService(session).check(config, lock=True)
        run = RunService(session, RecordingWakeUp()).create(NewRun(config, checkpoints=named))
        run_id = run.id

    with database.read() as session:
        assert held(session, [old]) == {old}

    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel(run_id)
    with database.read() as session:
        assert held(session, [old]) == set()


def resume(database: Database, checkpoint: str) -> list[str]:
    config = resolve({"behaviors": {"A": {}}, "checkpoint_settings": {"resume_from": checkpoint}})
    with database.write() as session:
        return CheckpointService(session).check(config, lock=True)


def test_a_run_may_go_on_from_a_checkpoint_of_another_one(database: Database) -> None:
    of_run = make_ledger(database, name="run").checkpoints.add(make_checkpoint())

    assert resume(database, of_run) == [of_run]


def test_a_run_cannot_go_on_from_what_is_not_there_or_was_uploaded(database: Database, tmp_path: Path) -> None:
    uploaded = add(database, tmp_path)
    for checkpoint, code, words in ((UNKNOWN, "not_found", "no checkpoint"), (uploaded, "contradiction", "at step 0")):
        with pytest.raises(InvalidConfig) as caught:
            resume(database, checkpoint)

        (problem,) = caught.value.problems
        assert (problem.path, problem.code) == ("checkpoint_settings.resume_from", code)
        assert words in problem.message


def test_of_a_checkpoint_with_several_behaviors_the_name_must_be_there(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    several = ledger.checkpoints.add(make_checkpoint(steps={"Hider": 500, "Seeker": 500}))
    single = ledger.checkpoints.add(make_checkpoint(path="runs/x/1/checkpoints/2", steps={"Hider": 500}))

    assert problems(database, A=several) == {"behaviors.A.initialize_from": "contradiction"}
    assert check(database, Hider=several, A=single) == sorted([several, single])


def test_what_a_run_begins_with_is_handed_to_its_attempts(database: Database, tmp_path: Path) -> None:
    uploaded, of_run = add(database, tmp_path), make_ledger(database, name="run").checkpoints.add(make_checkpoint())
    use(database, uploaded, of_run)
    attempt = AttemptLedger(database, make_claim(database))

    found = {each.id: each for each in attempt.initial_checkpoints()}

    assert set(found) == {uploaded, of_run}
    (file,) = found[uploaded].files
    assert (tmp_path / found[uploaded].path / file.name).exists()
    assert found[of_run].path == make_checkpoint().path


def test_retention_spares_what_a_live_run_begins_with(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ids = [
        ledger.checkpoints.add(make_checkpoint(step, path=f"runs/x/1/checkpoints/{step}", reason="interval"))
        for step in (100, 200, 300, 400)
    ]
    other = use(database, ids[0])

    assert ledger.checkpoints.retire(2) == [ids[1]]
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel(other)
    assert ledger.checkpoints.retire(2) == [ids[0]]
    assert read_run(database, other).state == RunState.CANCELLED
    assert read_run(database, other).stop_reason == StopReason.USER
