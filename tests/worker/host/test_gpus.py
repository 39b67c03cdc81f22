"""The GPUs of a worker host, and the fingerprint of an attempt."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from server.kit.db.database import Database
from server.kit.settings import WorkerSettings
from server.lifecycle.claims.repository import RunQueue
from server.runs.repository import RunRepository
from tests.factories import make_run
from tests.waiting import eventually
from worker.host.commands import worker
from worker.host.gpus import GpuInUse, assign, check_free, find_gpus, fingerprint, lock_gpus
from worker.host.process import TrainerProcess
from worker.host.tasks import HostResources

LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc)
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two GPUs, as far as `nvidia-smi` says, and a folder of locks of its own."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ncat <<END\n{LISTED}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("worker.host.gpus.LOCK_TIMEOUT_SECONDS", 0.0)
    return tmp_path


def test_a_host_has_a_slot_for_each_gpu_whose_trainers_see_it_alone(host: Path) -> None:
    equipment = HostResources.find(WorkerSettings())

    assert equipment.slots == 2
    assert [equipment.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["GPU-aaaa", "GPU-bbbb"]


def test_slots_share_out_the_gpus_that_are_named_and_those_beyond_them_see_none(host: Path) -> None:
    assert HostResources.find(WorkerSettings(slots=1)).of(0) == ("GPU-aaaa", "GPU-bbbb")
    assert HostResources.find(WorkerSettings(gpus=[1])).slots == 1
    beyond = HostResources.find(WorkerSettings(gpus=["GPU-bbbb"], slots=2))
    assert [beyond.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["GPU-bbbb", ""]
    assert assign(["a", "b", "c"], 2) == [("a", "b"), ("c",)]


def test_what_cuda_shows_this_host_is_what_there_is(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-dddd")
    assert find_gpus(None) == ["GPU-bbbb", "GPU-dddd"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus(None) == []


def test_without_nvidia_smi_trainers_look_for_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    equipment = HostResources.find(WorkerSettings())

    assert (equipment.slots, equipment.environment(0)) == (1, {})


def test_a_gpu_is_locked_until_the_slot_and_its_trainer_are_gone(host: Path) -> None:
    (lock,) = lock_gpus(["GPU-aaaa"], "worker one")
    with pytest.raises(GpuInUse, match=r"worker one.*LUDUS_WORKER__GPUS"):
        lock_gpus(["GPU-bbbb", "GPU-aaaa"], "worker two")
    check_free(["GPU-bbbb"])  # the attempt has not kept the other one

    child = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    trainer = subprocess.Popen(child, stdin=subprocess.PIPE, pass_fds=(lock.descriptor,))
    lock.release()
    with pytest.raises(GpuInUse):
        lock_gpus(["GPU-aaaa"], "worker two")
    trainer.communicate()

    (again,) = lock_gpus(["GPU-aaaa"], "worker two")
    again.release()


def test_a_trainer_inherits_its_slots_environment_and_locks(host: Path) -> None:
    (lock,) = lock_gpus(["GPU-aaaa"], "worker one")

    trainer = TrainerProcess.spawn({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, [lock.descriptor])

    try:
        # it is empty while the interpreter is just being loaded
        environment = eventually(lambda: Path(f"/proc/{trainer.pid}/environ").read_bytes()).split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=GPU-aaaa" in environment
        assert Path(f"/proc/{trainer.pid}/fd/{lock.descriptor}").exists()
    finally:
        trainer.end()
        lock.release()


def test_a_worker_whose_gpu_is_taken_says_so_and_does_not_start(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(host / "home"))
    (lock,) = lock_gpus(["GPU-aaaa"], "worker one")

    ended = CliRunner().invoke(worker, [])

    lock.release()
    assert ended.exit_code == 1
    assert "GPU GPU-aaaa is used by another worker of this host (worker one)" in ended.stderr


NVIDIA_SMI = """#!/bin/sh
echo 'GPU-aaaa, NVIDIA H200, 570.86.15'
echo 'GPU-bbbb, NVIDIA H100 80GB HBM3, 570.86.15'
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that are found before the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_it_names_release_libraries_and_hardware() -> None:
    found = fingerprint(())

    assert found["release"] == importlib.metadata.version("ludus")
    assert found["torch"] == importlib.metadata.version("torch")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"]
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 2**20
    assert "gpus" not in found


def test_it_names_the_slots_own_gpus_and_their_driver(tools: Path) -> None:
    program(tools, "nvidia-smi", NVIDIA_SMI)

    found = fingerprint(["GPU-bbbb", "GPU-unknown"])

    assert found["gpus"] == ["NVIDIA H100 80GB HBM3", "GPU-unknown"]
    assert found["driver"] == "570.86.15"


def test_a_tool_that_fails_leaves_its_facts_out_and_nothing_else(tools: Path) -> None:
    program(tools, "nvidia-smi", "#!/bin/sh\necho broken\nexit 9\n")

    found = fingerprint(["GPU-aaaa"])

    assert found["gpus"] == ["GPU-aaaa"]
    assert "driver" not in found
    assert found["release"]


def test_the_commit_is_the_settings_else_the_repositorys() -> None:
    root = Path(__file__).parents[3]

    assert fingerprint((), "1234abcd")["commit"] == "1234abcd"
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert fingerprint(())["commit"].removesuffix("-dirty") == head.stdout.strip()


def test_each_attempt_keeps_what_it_ran_on(database: Database) -> None:
    run = make_run(database)
    queue = RunQueue(database)
    assert queue.claim("one", -1.0, fingerprint={"release": "1", "cpu": "nul \x00 byte"}) is not None

    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(run.id)

    assert attempt.fingerprint is not None
    assert attempt.fingerprint["release"] == "1"
    assert "\x00" not in attempt.fingerprint["cpu"]


def test_an_attempt_of_the_former_release_has_none(database: Database) -> None:
    run = make_run(database)
    RunQueue(database).claim("one", 10.0)

    with database.read() as session:
        assert RunRepository(session).attempts(run.id)[0].fingerprint is None
