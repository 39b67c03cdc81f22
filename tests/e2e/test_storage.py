"""Where checkpoints go: a bucket of a real S3-compatible server, and disks that are full for a while."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.client import Client
from ludus.schemas import Run
from server.kit.artifacts.address import S3Address
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.s3 import ACCESS_KEY, SECRET_KEY, needs_s3, serve_s3
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults]
SETTLED_SECONDS = 2.0
"""A supervisor publishes what its trainer has written within this time."""
LEASE = {"LUDUS_WORKER__LEASE_SECONDS": "3", "LUDUS_WORKER__HEARTBEAT_SECONDS": "0.5"}


@contextmanager
def running(home: Path, **settings: str) -> Iterator[tuple[LudusUp, Client]]:
    """Run a stack of a test's own."""
    stack = LudusUp(home, **LEASE, **settings)
    try:
        with stack.client() as client:
            yield stack, client
    finally:
        stack.stop()


@contextmanager
def playing(stack: LudusUp, run: Run) -> Iterator[None]:
    player = Player(stack, run.id)
    try:
        yield
    finally:
        player.kill()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting needs root: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The disk of the store that tests share."""
    with small_disk(tmp_path_factory.mktemp("disk") / "store") as folder:
        yield folder


@pytest.fixture(scope="module")
def stack(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    with running(tmp_path_factory.mktemp("stack") / "home", LUDUS_STORAGE__ROOT=str(store)) as (stack, _):
        yield stack


def fill(folder: Path) -> Path:
    """Leave no room on a disk; return the file that takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return filler


def remount(folder: Path, how: str) -> None:
    """Let nothing write to a disk (`ro`), or let it again (`rw`)."""

    def done() -> bool:  # a file that is open for writing keeps it from becoming read-only
        return subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=False).returncode == 0

    eventually(done, f"the disk is {how}")


def failures(client: Client, run: Run) -> list[str]:
    events = client.events.list(run.id)
    return [event.data["code"] for event in events if event.type == "checkpoint_failed"]


@pytest.mark.s3
@needs_s3
def test_a_run_lives_in_a_bucket_and_recovers_from_the_newest_checkpoint_that_is_good_there(tmp_path: Path) -> None:
    with serve_s3(tmp_path / "s3") as server:
        address = server.bucket("artifacts")
        bucket, s3 = S3Address.parse(address), server.client()
        keys = {"LUDUS_STORAGE__ACCESS_KEY": ACCESS_KEY, "LUDUS_STORAGE__SECRET_KEY": SECRET_KEY}
        with running(tmp_path / "home", LUDUS_STORAGE__URL=address, **keys) as (stack, client):
            run = client.runs.create(cartpole())
            with playing(stack, run):
                eventually(lambda: len(client.checkpoints.list(run.id)) >= 2, "two checkpoints", 90)
                trainer = max(stack.processes("worker.trainer"), key=lambda each: each.cpu_times().user)
                trainer.suspend()
                newest, before, *_ = settled(client, run)
                damage(s3, bucket, newest.id, client, run)
                trainer.kill()

                eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt", 60)
                eventually(lambda: client.runs.get(run.id).state == "RUNNING", "it runs again", 60)
                (_, second) = sorted(client.runs.attempts(run.id), key=lambda attempt: attempt.number)
                assert second.resumed_from == before.id
                told = [event for event in client.events.list(run.id) if event.type == "checkpoint_damaged"]
                assert [event.data["checkpoint_id"] for event in told] == [newest.id]
                wait_for_step(client, run, before.step + 1100)
                client.runs.stop(run.id)
                assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"

            last = client.checkpoints.get(run.id)
            model = client.checkpoints.download(run.id, last.id, "CartPole.onnx", tmp_path / "CartPole.onnx")
            assert model.stat().st_size == next(file.size for file in last.files if file.name == "CartPole.onnx")
            assert client.checkpoints.verify(run.id).sound
            listed: Any = s3.list_objects_v2(Bucket=bucket.bucket, Prefix=f"{bucket.prefix}runs/{run.id}/2/logs/")
            assert [Path(each["Key"]).name for each in listed["Contents"]] == ["trainer.log"]
        assert not (tmp_path / "home" / "artifacts" / "runs").exists()


def settled(client: Client, run: Run) -> list[Any]:
    """Return the checkpoints of a run whose trainer is suspended, newest first, once none is on its way any more."""
    found, since = client.checkpoints.list(run.id), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        time.sleep(0.1)  # allow: sleep, because what is still on its way shows in nothing but time
        seen = client.checkpoints.list(run.id)
        if [each.id for each in seen] != [each.id for each in found]:
            found, since = seen, time.monotonic()
    return found


def damage(s3: Any, bucket: S3Address, checkpoint: str, client: Client, run: Run) -> None:
    """Flip a byte of a checkpoint behind everybody's back."""
    found = client.checkpoints.get(run.id, checkpoint)
    folder = f"{bucket.prefix}runs/{run.id}/{found.attempt}/checkpoints/"
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket.bucket, Prefix=folder)["Contents"]]
    (key,) = [each for each in keys if each.startswith(f"{folder}{found.step}-") and each.endswith("state.safetensors")]
    content = bytearray(s3.get_object(Bucket=bucket.bucket, Key=key)["Body"].read())
    content[-1] ^= 1
    s3.put_object(Bucket=bucket.bucket, Key=key, Body=bytes(content))


def train_while_the_disk_is_full(stack: LudusUp, client: Client, disk: Path) -> None:
    run = client.runs.create(cartpole(keep_checkpoints=100))  # so that retention removes none that is looked at
    with playing(stack, run):
        eventually(lambda: client.checkpoints.list(run.id), "a checkpoint", 90)
        filler = fill(disk)
        eventually(lambda: failures(client, run), "a checkpoint finds no room", 60)
        kept = client.checkpoints.list(run.id)
        assert kept
        assert all(client.checkpoints.verify(run.id, each.id).sound for each in kept)
        wait_for_step(client, run, client.runs.get(run.id).step + 600)

        filler.unlink()
        step = client.runs.get(run.id).step
        eventually(lambda: client.checkpoints.get(run.id).step > step, "a checkpoint is saved again", 60)
        client.runs.stop(run.id)
        ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.attempt) == ("SUCCEEDED", 1)
    assert set(failures(client, run)) == {"storage_full"}
    assert client.checkpoints.verify(run.id).sound


def test_a_full_store_costs_checkpoints_until_there_is_room_again_and_nothing_that_was_acknowledged(
    stack: LudusUp, client: Client, store: Path
) -> None:
    train_while_the_disk_is_full(stack, client, store)


def test_a_full_scratch_folder_costs_no_more_than_a_full_store(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "scratch") as scratch,
        running(tmp_path / "home", LUDUS_WORKER__SCRATCH=str(scratch)) as (stack, client),
    ):
        train_while_the_disk_is_full(stack, client, scratch)


def test_a_run_without_its_last_checkpoint_fails_by_name(stack: LudusUp, client: Client, store: Path) -> None:
    filler = fill(store)
    os.truncate(filler, filler.stat().st_size - 20_000)  # there is room for logs
    try:
        run = client.runs.create(cartpole(network_settings={"hidden_units": 128}))
        with playing(stack, run):
            eventually(lambda: failures(client, run), "the first checkpoint finds no room", 60)
            wait_for_step(client, run, client.runs.get(run.id).step + 600)
            client.runs.stop(run.id)
            ended = client.runs.wait(run.id, timeout=40)
    finally:
        filler.unlink()

    assert set(failures(client, run)) == {"storage_full"}
    assert (ended.state, ended.stop_reason) == ("FAILED", "storage_full")
    assert client.checkpoints.list(run.id) == []


def test_a_read_only_store_costs_checkpoints_until_it_takes_writes_again_and_the_run_says_so(
    stack: LudusUp, client: Client, store: Path
) -> None:
    run = client.runs.create(cartpole(keep_checkpoints=100))
    with playing(stack, run):
        eventually(lambda: client.checkpoints.list(run.id), "a checkpoint", 90)
        remount(store, "ro")
        try:
            eventually(lambda: failures(client, run), "a checkpoint is refused", 60)
            kept = client.checkpoints.list(run.id)
            max(stack.processes("worker.trainer"), key=lambda each: each.cpu_times().user).kill()
            eventually(lambda: client.runs.get(run.id).attempt == 2, "it resumes from what it can read", 60)
            (_, second) = sorted(client.runs.attempts(run.id), key=lambda attempt: attempt.number)
            assert second.resumed_from in {each.id for each in kept}
            wait_for_step(client, run, second.resume_step + 600)
        finally:
            remount(store, "rw")

        step = client.runs.get(run.id).step
        eventually(lambda: client.checkpoints.get(run.id).step > step, "a checkpoint is saved again", 60)
        client.runs.stop(run.id)
        ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.attempt) == ("SUCCEEDED", 2)
    assert set(failures(client, run)) == {"storage_refused"}
    (refused, *_) = [event for event in client.events.list(run.id) if event.type == "checkpoint_failed"]
    assert "Read-only file system" in refused.message
    assert "To mend it, let this process write there" in refused.message
    assert {each.id for each in kept} <= {each.id for each in client.checkpoints.list(run.id)}
    assert all(client.checkpoints.verify(run.id, each.id).sound for each in client.checkpoints.list(run.id))
