"""Artifacts in a bucket of a real S3-compatible server: what a folder promises, and errors that say what to do."""

import hashlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.auth
import pytest

from server.kit.artifacts.address import S3Address
from server.kit.artifacts.s3 import PART, S3Store
from server.kit.artifacts.store import FileRef, digest_of, fetch
from server.kit.errors import ArtifactNotFound, InvalidArtifactPath, StorageRefused, StorageUnavailable
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server, needs_s3, serve_s3

pytestmark = [pytest.mark.s3, needs_s3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> str:
    """Return the address of a store in an empty bucket."""
    return server.bucket(f"test-{secrets.token_hex(4)}")


@pytest.fixture
def store(bucket: str) -> S3Store:
    return S3Store(S3Address.parse(bucket), ACCESS_KEY, SECRET_KEY, timeout_seconds=5, tries=2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "models").mkdir(parents=True)
    (folder / "state.safetensors").write_bytes(b"weights" * 1000)
    (folder / "models" / "Stürmer Nr. 1?team=1.onnx").write_bytes(b"model")
    return folder


def paths(store: S3Store, top: str = "runs") -> set[str]:
    return {stored.path for stored in store.files(top)}


def test_a_published_folder_comes_back_with_sizes_and_digests(store: S3Store, source: Path) -> None:
    files = store.publish(source, "runs/run_1/1/checkpoints/100-1")

    assert files == [
        FileRef("models/Stürmer Nr. 1?team=1.onnx", 5, hashlib.sha256(b"model").hexdigest()),
        FileRef("state.safetensors", 7000, hashlib.sha256(b"weights" * 1000).hexdigest()),
    ]
    assert store.size("runs/run_1/1/checkpoints/100-1/state.safetensors") == 7000
    assert digest_of(store, "runs/run_1/1/checkpoints/100-1/models/Stürmer Nr. 1?team=1.onnx") == files[0].sha256
    assert {stored.size for stored in store.files("runs")} == {5, 7000}
    assert max(abs(stored.modified - time.time()) for stored in store.files("runs")) < 60


def test_a_file_of_many_parts_comes_back_as_it_was(store: S3Store, tmp_path: Path) -> None:
    content = os.urandom(PART * 2 + 12345)
    (tmp_path / "buffer").write_bytes(content)

    (file,) = store.publish(tmp_path / "buffer", "runs/a/1/buffer")
    digest = fetch(store, "runs/a/1/buffer", tmp_path / "back")

    assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert digest == file.sha256
    assert (tmp_path / "back").read_bytes() == content


def test_reading_may_begin_anywhere(store: S3Store, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0123456789")
    store.publish(tmp_path / "log", "runs/a/1/logs/log")

    def read(start: int) -> bytes:
        with store.open("runs/a/1/logs/log", start) as file:
            return file.read(4)

    assert [read(0), read(7), read(10), read(11)] == [b"0123", b"789", b"", b""]


def test_a_single_file_is_replaced(store: S3Store, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    for text in ("one", "one two"):
        log.write_text(text)
        store.publish(log, "runs/a/1/logs/trainer.log")

    with store.open("runs/a/1/logs/trainer.log") as file:
        assert file.read() == b"one two"


def test_publishing_the_same_folder_again_is_harmless_and_another_is_refused(store: S3Store, source: Path) -> None:
    first = store.publish(source, "runs/a/1/c")

    assert store.publish(source, "runs/a/1/c") == first
    (source / "state.safetensors").write_bytes(b"WEIGHTS" * 1000)
    with pytest.raises(FileExistsError, match="never changes"):
        store.publish(source, "runs/a/1/c")
    assert digest_of(store, "runs/a/1/c/state.safetensors") == first[1].sha256


def test_a_publication_that_was_killed_is_completed_by_the_next(
    store: S3Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = store._put, []

    def dies(*arguments: Any) -> FileRef:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return put(*arguments)

    monkeypatch.setattr(store, "_put", dies)
    with pytest.raises(KeyboardInterrupt):
        store.publish(source, "runs/a/1/c")
    assert len(paths(store)) == 1

    assert len(store.publish(source, "runs/a/1/c")) == 2
    assert len(paths(store)) == 2


def test_deleting_removes_a_folder_once_and_for_all_and_nothing_beside_it(store: S3Store, source: Path) -> None:
    store.publish(source, "runs/a/1/c")
    store.publish(source, "runs/a/1/c2")

    store.delete("runs/a/1/c")
    store.delete("runs/a/1/c")

    assert {path.split("/")[3] for path in paths(store)} == {"c2"}
    with pytest.raises(ArtifactNotFound, match="retention"):
        store.open("runs/a/1/c/state.safetensors")
    with pytest.raises(ArtifactNotFound):
        store.size("runs/a/1/c/state.safetensors")


def test_stores_of_other_prefixes_see_nothing_of_each_other(store: S3Store, bucket: str, source: Path) -> None:
    store.publish(source, "runs/a/1/c")

    beside = S3Store(S3Address.parse(bucket.replace("some/prefix", "other")), ACCESS_KEY, SECRET_KEY)

    assert paths(beside) == set()


def test_uploads_that_never_ended_are_swept_away_when_they_are_old(
    store: S3Store, server: S3Server, bucket: str
) -> None:
    client: Any = server.client()
    name = S3Address.parse(bucket).bucket
    client.create_multipart_upload(Bucket=name, Key="some/prefix/runs/a/1/buffer")
    # This server lists the unfinished uploads of a key alone, not those below a prefix.
    pending = client.list_multipart_uploads(Bucket=name, Prefix="some/prefix/runs/a/1/buffer").get("Uploads", [])

    assert store.sweep(3600) == 0
    if pending:
        assert store.sweep(-60) in {0, 1}


@pytest.mark.parametrize("path", ["", "../x", "a//b", ".hidden", "a/", " a"])
def test_a_path_that_could_leave_the_store_is_refused(store: S3Store, source: Path, path: str) -> None:
    for refused in (lambda: store.publish(source, path), lambda: store.open(path), lambda: store.delete(path)):
        with pytest.raises(InvalidArtifactPath):
            refused()


def test_a_bucket_that_is_missing_is_named(server: S3Server, source: Path) -> None:
    store = S3Store(S3Address.parse(f"s3://no-such-bucket?endpoint={server.endpoint}"), ACCESS_KEY, SECRET_KEY)

    for refused in (lambda: store.publish(source, "runs/a"), lambda: list(store.files("runs"))):
        with pytest.raises(StorageRefused, match=r"no bucket 'no-such-bucket'.*create it"):
            refused()


@pytest.mark.parametrize(
    ("access_key", "secret_key", "sentence"),
    [
        ("nobody", SECRET_KEY, "does not take the keys.*InvalidAccessKeyId"),
        (ACCESS_KEY, "wrong-secret-key", "does not take the keys.*SignatureDoesNotMatch"),
    ],
)
def test_wrong_keys_are_told_without_showing_them(
    bucket: str, source: Path, access_key: str, secret_key: str, sentence: str
) -> None:
    store = S3Store(S3Address.parse(bucket), access_key, secret_key)

    with pytest.raises(StorageRefused, match=sentence) as caught:
        store.publish(source, "runs/a/1/c")

    assert secret_key not in str(caught.value)


def test_without_any_keys_it_says_where_to_put_them(
    bucket: str, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))

    with pytest.raises(StorageRefused, match="LUDUS_STORAGE__ACCESS_KEY"):
        S3Store(S3Address.parse(bucket)).publish(source, "runs/a/1/c")


def test_keys_may_come_from_the_environment(bucket: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)

    assert len(S3Store(S3Address.parse(bucket)).publish(source, "runs/a/1/c")) == 2


def test_a_clock_that_is_wrong_is_called_so(store: S3Store, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = botocore.auth.get_current_datetime

    def an_hour_ago(*arguments: Any, **keywords: Any) -> Any:
        from datetime import timedelta  # noqa: PLC0415

        return now(*arguments, **keywords) - timedelta(hours=1)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", an_hour_ago)
    with pytest.raises(StorageRefused, match=r"clock.*NTP"):
        store.publish(source, "runs/a/1/c")


def test_a_server_that_is_away_may_be_tried_again_and_one_that_hangs_costs_the_time_out(
    tmp_path: Path, source: Path
) -> None:
    with serve_s3(tmp_path / "own") as server:
        address = S3Address.parse(server.bucket("artifacts"))
        store = S3Store(address, ACCESS_KEY, SECRET_KEY, timeout_seconds=0.5, tries=2)
        server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="Try again"):
            store.publish(source, "runs/a/1/c")
        assert time.monotonic() - began < 10
        server.process.send_signal(signal.SIGCONT)

        assert len(store.publish(source, "runs/a/1/c")) == 2

    with pytest.raises(StorageUnavailable, match="does not answer"):
        store.open("runs/a/1/c/state.safetensors")


def test_a_server_that_dies_in_the_middle_of_a_download_is_no_short_file(tmp_path: Path) -> None:
    content = os.urandom(8 << 20)
    (tmp_path / "buffer").write_bytes(content)
    with serve_s3(tmp_path / "own") as server:
        store = S3Store(S3Address.parse(server.bucket("artifacts")), ACCESS_KEY, SECRET_KEY, timeout_seconds=2, tries=1)
        store.publish(tmp_path / "buffer", "runs/a/1/buffer")
        file = store.open("runs/a/1/buffer")
        assert len(file.read(1000)) == 1000
        server.process.kill()
        server.process.wait()

        with pytest.raises(StorageUnavailable):
            file.read()


def test_a_server_without_room_is_a_full_store_and_nothing_is_half_there(tmp_path: Path, source: Path) -> None:
    """Four threads fill a volume of 1 GiB, the least that there is."""
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(300 << 20)
    with serve_s3(tmp_path / "own", capacity_gib=1) as server:
        store = S3Store(S3Address.parse(server.bucket("artifacts")), ACCESS_KEY, SECRET_KEY, tries=1)
        refused: list[Exception] = []

        def publish(number: int) -> None:
            try:
                store.publish(big, f"runs/a/1/{number}")
            except Exception as error:  # noqa: BLE001  # the test looks at it
                refused.append(error)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [type(error).__name__ for error in refused] == ["StorageFull"] * len(refused)
        assert refused
        for path in paths(store):
            assert store.size(path) == 300 << 20
