"""After a restore: every file that the database names is there as it was stored, and what is too much is listed."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from ludus.cli import ludus
from server.checkpoints.models import Checkpoint
from server.kit.artifacts.opening import open_store
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.verification import Difference, Fault, verify
from tests.factories import make_checkpoint, make_claim, make_run
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server, needs_s3, serve_s3

FOLDERS = ("folder", pytest.param("bucket", marks=[pytest.mark.s3, needs_s3]))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=FOLDERS)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of a server with a new database and an empty store."""
    storage: dict[str, Any] = {}
    if request.param == "bucket":
        server: S3Server = request.getfixturevalue("s3")
        url = server.bucket(f"test-{secrets.token_hex(4)}")
        storage = {"url": url, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    settings = Settings(home=tmp_path, storage=storage)  # type: ignore[arg-type]
    database = Database.from_settings(settings.database)
    upgrade_database(database)
    database.close()
    return settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database.from_settings(settings.database)
    yield database
    database.close()


@pytest.fixture
def store(settings: Settings) -> ArtifactStore:
    return open_store(settings.storage)


@pytest.fixture
def checkpoint(database: Database, store: ArtifactStore, tmp_path: Path) -> str:
    """Return the folder of a checkpoint with two files."""
    make_run(database)
    claim = make_claim(database)
    path = f"runs/{claim.run_id}/1/checkpoints/100"
    write(store, tmp_path, path, {"state.json": b"state", "Model.onnx": b"x" * 1000})
    files = store.publish(tmp_path / "source", path)
    AttemptLedger(database, claim).checkpoints.add(make_checkpoint(100, path=path, files=files))
    return path


def write(store: ArtifactStore, tmp_path: Path, path: str, files: dict[str, bytes]) -> None:
    """Replace a folder of the store."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    for file in source.iterdir():
        file.unlink()
    for name, content in files.items():
        (source / name).write_bytes(content)
    store.delete(path)
    store.publish(source, path)


def differences(database: Database, store: ArtifactStore, *, quick: bool = False) -> list[Difference]:
    return list(verify(database, store, quick=quick))


@pytest.mark.usefixtures("checkpoint")
def test_a_whole_store_has_no_difference(database: Database, store: ArtifactStore) -> None:
    assert differences(database, store) == []
    assert differences(database, store, quick=True) == []


def test_files_that_are_missing_damaged_or_too_much_are_told_apart(
    database: Database, store: ArtifactStore, checkpoint: str, tmp_path: Path
) -> None:
    write(store, tmp_path, checkpoint, {"Model.onnx": b"y" * 1000})
    write(store, tmp_path, "runs/run_gone/1/checkpoints/7", {"state.json": b"nobody's"})

    damaged, missing, *orphans = sorted(differences(database, store), key=lambda each: each.fault)

    assert (missing.fault, missing.path) == (Fault.MISSING, f"{checkpoint}/state.json")
    assert (damaged.fault, damaged.path) == (Fault.DAMAGED, f"{checkpoint}/Model.onnx")
    assert "SHA-256" in damaged.detail
    assert (damaged.owner or "").startswith("checkpoint ckpt_")
    assert {(each.fault, each.path) for each in orphans} == {
        (Fault.ORPHANED, "runs/run_gone/1/checkpoints/7"),
        (Fault.ORPHANED, "runs/run_gone"),
    }
    quick = {(each.fault, each.path) for each in differences(database, store, quick=True)}
    assert (Fault.DAMAGED, damaged.path) not in quick, "its size is right"
    write(store, tmp_path, checkpoint, {"state.json": b"state", "Model.onnx": b"short"})
    assert [each.detail for each in differences(database, store, quick=True) if each.fault == Fault.DAMAGED] == [
        "it has 5 bytes, not 1000"
    ]


def test_what_is_given_up_is_no_difference(database: Database, store: ArtifactStore, checkpoint: str) -> None:
    store.delete(checkpoint)
    with database.write() as session:
        session.execute(update(Checkpoint).values(deleted_at=1.0))

    assert differences(database, store) == []


def test_the_command_says_it_by_lines_json_and_its_exit_code(
    settings: Settings, store: ArtifactStore, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    if settings.storage.url is not None:
        for name, value in (("URL", settings.storage.url), ("ACCESS_KEY", ACCESS_KEY), ("SECRET_KEY", SECRET_KEY)):
            monkeypatch.setenv(f"LUDUS_STORAGE__{name}", value)

    def invoke(*options: str) -> Any:
        return CliRunner().invoke(ludus, ["admin", "verify", *options])

    fine = invoke()
    assert (fine.exit_code, fine.stdout) == (0, "")
    assert "every file is there" in fine.stderr

    write(store, tmp_path, "checkpoints/upload_gone", {"checkpoint.pt": b"x"})
    spare = invoke("--json")
    assert spare.exit_code == 0, "what is too much breaks nothing"
    assert [each["fault"] for each in json.loads(spare.stdout)] == ["orphaned"]

    store.delete(f"{checkpoint}/state.json")
    broken = invoke()
    assert broken.exit_code == 3
    assert f"missing   {checkpoint}/state.json" in broken.stdout


def test_without_a_servers_database_the_command_says_so_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "elsewhere"
    monkeypatch.delenv("LUDUS_DATABASE__URL", raising=False)

    missing = CliRunner().invoke(ludus, ["admin", "verify", "--home", str(home)])
    assert missing.exit_code == 1
    assert f"There is no database at {home}/ludus.db. Name the server's home folder" in missing.stderr
    assert not home.exists()

    home.mkdir()
    (home / "ludus.db").touch()
    empty = CliRunner().invoke(ludus, ["admin", "verify", "--home", str(home)])
    assert (empty.exit_code, isinstance(empty.exception, SystemExit)) == (1, True)
    assert "ludus migrate" in empty.stderr
