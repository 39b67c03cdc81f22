"""States come back as they were; damaged ones are refused with the reason."""

import json
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.mlagents.results.folder import pack
from worker.trainer import checkpoint
from worker.trainer.checkpoint import MANIFEST_FILE, TENSORS_FILE, CheckpointDamaged
from worker.trainer.checkpoints import lower_priority

STATE: dict[str, Any] = {
    "step": 12_000,
    "big": 2**127 + 1,
    "rate": 0.1,
    "best": -math.inf,
    "name": "Walker?team=1",
    "done": False,
    "resume": None,
    "pair": (1, [2.5, "x"]),
    "empty": {},
    "weights": {"a/b": torch.arange(6.0).view(2, 3).t(), "none": torch.zeros(0, 4), "scalar": torch.tensor(7)},
    "masks": np.array([[True, False]]),
}


def peak_memory() -> int:
    """Most bytes that this process has held since `forget_peak`."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def saved(folder: Path) -> Path:
    checkpoint.save(folder, STATE)
    return folder


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    loaded = checkpoint.load(saved(tmp_path))

    weights, masks = loaded.pop("weights"), loaded.pop("masks")
    assert loaded == {key: value for key, value in STATE.items() if key not in {"weights", "masks"}}
    for name, tensor in STATE["weights"].items():
        assert weights[name].dtype == tensor.dtype
        assert torch.equal(weights[name], tensor)
    assert isinstance(masks, np.ndarray)
    np.testing.assert_array_equal(masks, STATE["masks"])


def test_a_checkpoint_packed_by_ludus_learn_is_unpacked_as_it_was(tmp_path: Path) -> None:
    files = [saved(tmp_path) / name for name in (TENSORS_FILE, MANIFEST_FILE)]
    pack(files, tmp_path / "checkpoint.pt")
    (tmp_path / "unpacked").mkdir()

    checkpoint.unpack(tmp_path / "checkpoint.pt", tmp_path / "unpacked")

    assert checkpoint.is_packed(tmp_path / "checkpoint.pt")
    assert not checkpoint.is_packed(files[0])
    assert checkpoint.load(tmp_path / "unpacked")["name"] == STATE["name"]


def test_a_packed_checkpoint_that_was_altered_is_refused(tmp_path: Path) -> None:
    pack([saved(tmp_path) / name for name in (TENSORS_FILE, MANIFEST_FILE)], tmp_path / "checkpoint.pt")
    content = bytearray((tmp_path / "checkpoint.pt").read_bytes())
    content[200] ^= 1
    (tmp_path / "checkpoint.pt").write_bytes(content)
    (tmp_path / "unpacked").mkdir()

    with pytest.raises(CheckpointDamaged):
        checkpoint.unpack(tmp_path / "checkpoint.pt", tmp_path / "unpacked")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(min_size=1).filter(lambda key: key[0] != "$"), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_any_nested_state_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")

    checkpoint.save(folder, {"value": value})

    assert checkpoint.load(folder) == {"value": value}


def test_states_of_random_generators_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    generator = torch.Generator().manual_seed(5)
    checkpoint.save(tmp_path, {"numpy": rng.bit_generator.state, "torch": generator.get_state()})
    expected = rng.random(3).tolist(), torch.rand(3, generator=generator).tolist()

    loaded = checkpoint.load(tmp_path)
    rng, generator = np.random.default_rng(), torch.Generator()
    rng.bit_generator.state = loaded["numpy"]
    generator.set_state(loaded["torch"])

    assert (rng.random(3).tolist(), torch.rand(3, generator=generator).tolist()) == expected


@pytest.mark.parametrize("dtype", list(checkpoint.DTYPES))
def test_tensors_of_every_dtype_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)[:, ::2]  # not contiguous
    checkpoint.save(tmp_path, {"tensor": tensor, "array": np.array(7.0)})

    loaded = checkpoint.load(tmp_path)

    assert loaded["tensor"].dtype == dtype
    assert torch.equal(loaded["tensor"], tensor)
    assert loaded["array"].shape == ()


def test_the_tensor_file_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(saved(tmp_path) / TENSORS_FILE)

    assert torch.equal(tensors["/weights/a/b"], STATE["weights"]["a/b"])


def test_a_large_state_is_written_without_a_copy_of_it_in_memory(tmp_path: Path) -> None:
    buffer = torch.zeros(128 << 20, dtype=torch.uint8)
    forget_peak()
    before = peak_memory()

    checkpoint.save(tmp_path, {"replay": {"observations": buffer}})

    assert peak_memory() - before < 48 << 20  # of 128 MiB
    assert (tmp_path / TENSORS_FILE).stat().st_size > 128 << 20


@pytest.mark.parametrize("name", [TENSORS_FILE, MANIFEST_FILE])
def test_a_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    (saved(tmp_path) / name).unlink()

    with pytest.raises(CheckpointDamaged, match=f"{name} is missing"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("name", [TENSORS_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_noticed(tmp_path: Path, name: str, share: float) -> None:
    data = (saved(tmp_path) / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * share)])

    with pytest.raises(CheckpointDamaged):
        checkpoint.load(tmp_path)


def test_an_altered_tensor_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path) / TENSORS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(CheckpointDamaged, match="is not what was written"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": {"step": 1}}, "is not what was written"),
        ({"version": 99}, "version 99"),
        ({"format": "other"}, "is not a manifest"),
    ],
)
def test_an_altered_manifest_is_noticed(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = saved(tmp_path) / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(CheckpointDamaged, match=reason):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "state",
    [{"what": object()}, {"set": {1}}, {"$tensor": "x"}, {"inner": {3: "number"}}, {"wave": torch.zeros(1) * 1j}],
    ids=["object", "set", "marker", "key", "complex"],
)
def test_what_a_state_cannot_hold_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a state"):
        checkpoint.save(tmp_path, state)


def test_a_trainer_that_runs_at_a_lower_priority_writes_checkpoints_at_it() -> None:
    """Only root may raise a priority: under `nice -n 15` of another user each checkpoint would fail."""

    def priority_after(nice: int) -> int:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        lower_priority()
        return os.getpriority(os.PRIO_PROCESS, thread)

    for nice, expected in ((9, 10), (15, 15)):
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(priority_after, nice).result() == expected
