"""Complete training state on disk: tensors in `state.safetensors`, everything else in `state.json`. No pickle.

A state is a nested structure of dicts (with string keys), lists, tuples, tensors, numpy arrays, integers of any size,
floats, strings, booleans and None: what `state_dict` of algorithms and of random generators return. It comes back as
it was, bit for bit.

The manifest holds the structure with a reference in place of each tensor, and the SHA-256 of the tensor file and of
itself, so that a truncated or altered file is noticed before any of it is used. Publishing the folder atomically is the
business of the caller (`server.kit.artifacts`).

A replay buffer may fill most of the memory. So tensors are written one after the other and hashed on the way, without a
copy of the whole: contiguous tensors on the CPU are written from where they lie, others cost a copy of one tensor at a
time. Loading hashes the file in pieces and then maps it, tensor by tensor. The file is what `safetensors` itself would
read and write: 8 bytes with the length of a JSON header, the header, the data.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file as load_tensors
from torch import Tensor

from worker.experience.state import State

TENSORS_FILE, MANIFEST_FILE = "state.safetensors", "state.json"
FORMAT, FORMAT_VERSION = "ludus-checkpoint", 1
_TENSOR, _ARRAY, _FLOAT, _TUPLE = "$tensor", "$array", "$float", "$tuple"
CHUNK = 1 << 24
"""Bytes that are read or written, and hashed, at a time."""
ENVIRONMENT_PARAMETERS = "?environment_parameters"
"""Key of the run's lessons in a training state, beside the behaviors', whose names have no question mark."""
AMENDMENTS = "?amendments"
"""Key of the number of the newest amendment that the state has, where there are any."""
COLLECTORS = "?collectors"
"""Key of what collectors have handed over (`ludus.collector.snapshots.state`), in their order; none where nothing
was."""
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""The names of dtypes in a safetensors header."""


class CheckpointDamaged(RuntimeError):
    """A checkpoint can't be used: a file is missing, truncated, altered, or of a format that is not known here."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"the checkpoint in {folder} can't be used: {reason}; resume from an older one")
        self.folder = folder
        self.reason = reason


def save(folder: Path, state: Mapping[str, object]) -> list[Path]:
    """Write a state into an existing folder and return its files. Raise `TypeError` for what a state can't hold."""
    tensors: dict[str, Tensor] = {}
    structure = _encode(state, "", tensors)
    paths = [folder / TENSORS_FILE, folder / MANIFEST_FILE]
    with paths[0].open("wb") as file:
        digest = _write_tensors(file, tensors)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "tensors_sha256": digest,
        "state_sha256": _digest(structure),
        "state": structure,
    }
    paths[1].write_text(json.dumps(manifest, allow_nan=False), encoding="utf-8")
    return paths


def copied(state: Any) -> Any:
    """Return a copy of a state, tensors on the CPU."""
    match state:
        case Tensor():
            detached = state.detach()
            return detached.clone() if detached.device.type == "cpu" else detached.cpu()
        case np.ndarray():
            return state.copy()
        case dict():
            return {key: copied(item) for key, item in state.items()}
        case list():
            return [copied(item) for item in state]
        case tuple():
            return tuple(copied(item) for item in state)
        case _:
            return state


def bytes_of(state: object) -> int:
    """Return how much memory a copy of a state takes, as far as it is tensors and arrays."""
    match state:
        case Tensor() | np.ndarray():
            return int(state.nbytes)
        case dict():
            return sum(map(bytes_of, state.values()))
        case list() | tuple():
            return sum(map(bytes_of, state))
        case _:
            return 0


def available_memory() -> int:
    """Return how many bytes of memory this machine can hand out without swapping, as Linux estimates it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no line MemAvailable")


def load(folder: Path) -> State:
    """Return the state that `save` wrote, tensors on the CPU. Raise `CheckpointDamaged`."""
    manifest = _read_manifest(folder)
    path = folder / TENSORS_FILE
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointDamaged(folder, f"{TENSORS_FILE} is missing") from None
    if digest != manifest["tensors_sha256"]:
        raise CheckpointDamaged(folder, f"{TENSORS_FILE} ({path.stat().st_size} bytes) is not what was written")
    try:
        tensors = load_tensors(path)
    except safetensors.SafetensorError as error:
        raise CheckpointDamaged(folder, f"{TENSORS_FILE}: {error}") from error
    state: State = _decode(manifest["state"], tensors)
    return state


def behavior_states(state: State) -> State:
    """Return the states of behaviors in a training state, without the parts of the run as a whole."""
    return {name: behavior for name, behavior in state.items() if not name.startswith("?")}


def is_packed(file: Path) -> bool:
    """Whether a file is a checkpoint as an archive of its two files, as `ludus learn` keeps it."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()) == {TENSORS_FILE, MANIFEST_FILE}
    except (OSError, zipfile.BadZipFile):
        return False


def unpack(archive: Path, folder: Path) -> None:
    """Write the two files of such an archive into an existing folder. Raise `CheckpointDamaged`."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for name in (TENSORS_FILE, MANIFEST_FILE):
                packed.extract(name, folder)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise CheckpointDamaged(archive, str(error)) from error


def _read_manifest(folder: Path) -> State:
    """Return the manifest, once it is known to be whole."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointDamaged(folder, f"{MANIFEST_FILE} is missing") from None
    except ValueError as error:
        raise CheckpointDamaged(folder, f"{MANIFEST_FILE} is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointDamaged(folder, f"{MANIFEST_FILE} is not a manifest of a checkpoint")
    if manifest.get("version") != FORMAT_VERSION:
        version = manifest.get("version")
        raise CheckpointDamaged(folder, f"its format is version {version}, this program reads {FORMAT_VERSION}")
    if manifest.get("state_sha256") != _digest(manifest.get("state")) or "tensors_sha256" not in manifest:
        raise CheckpointDamaged(folder, f"{MANIFEST_FILE} is not what was written")
    return manifest


def _write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file and return its SHA-256."""
    header, end = dict[str, object](), 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    digest = hashlib.sha256()
    for part in (len(text).to_bytes(8, "little"), text):
        digest.update(part)
        file.write(part)
    for tensor in tensors.values():
        contiguous = tensor.detach().cpu().contiguous()
        # One element counts as contiguous whatever its stride, and a view as bytes does not take every stride.
        flat = memoryview(contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8).numpy().data)
        for start in range(0, len(flat), CHUNK):
            chunk = flat[start : start + CHUNK]
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """Return a value as JSON holds it; put its tensors into `tensors` under their paths."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {_FLOAT: str(value)}
        case Tensor():
            if value.dtype not in DTYPES:
                raise TypeError(f"a state can't hold a tensor of {value.dtype} (at {path or '/'})")
            tensors[path] = value
            return {_TENSOR: path}
        case np.ndarray():
            tensors[path] = torch.from_numpy(np.require(value, requirements=("C", "W")))
            return {_ARRAY: path}
        case list():
            return [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        case tuple():
            return {_TUPLE: _encode(list(value), path, tensors)}
        case dict():
            for key in value:
                if not isinstance(key, str) or key.startswith("$"):
                    raise TypeError(
                        f"a state's keys are strings that don't begin with $, not {key!r} (at {path or '/'})"
                    )
            return {key: _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        case _:
            raise TypeError(f"a state can't hold a {type(value).__name__} (at {path or '/'})")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case {"$tensor": path}:
            return tensors[path]
        case {"$array": path}:
            return tensors[path].numpy()
        case {"$float": text}:
            return float(text)
        case {"$tuple": items}:
            return tuple(_decode(items, tensors))
        case dict():
            return {key: _decode(item, tensors) for key, item in value.items()}
        case list():
            return [_decode(item, tensors) for item in value]
        case _:
            return value


def _digest(structure: object) -> str:
    text = json.dumps(structure, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
