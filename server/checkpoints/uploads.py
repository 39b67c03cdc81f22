"""Files of uploaded checkpoints: looked into before they are kept. No database, and no torch.

Here a file is only distinguished from others: `torch.save` writes an archive of uncompressed entries, one of which is a
pickle that names the modules. The pickle is read as a list of operations, never executed; whether the tensors are
those of a behavior's networks only the worker can say, which refuses a run with the names that don't fit.
"""

import hashlib
import json
import pickletools
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ludus.demonstrations.archives import DAMAGED, content, opened
from server.checkpoints.refs import CheckpointInvalid
from server.kit.artifacts.store import ArtifactStore, Stored, published
from server.kit.db.ids import new_id

FILE: Final = "checkpoint.pt"
"""Name of the file in its folder."""
MLAGENTS: Final = "mlagents"
LUDUS: Final = "ludus"
"""Format of a checkpoint of our own as one file, an archive of its two: what `ludus learn` keeps on its machine."""
STATE_FILES: Final = frozenset({"state.json", "state.safetensors"})
MAX_STATE_BYTES: Final = 16 << 20
"""It names tensors, too. Once parsed, a hostile one takes twenty times as much."""
POLICY: Final = "Policy"
"""The module that every checkpoint of ML-Agents has."""
MODULES: Final = (POLICY, "Optimizer:", "Module:")
"""Prefixes of the names of its modules."""
MAX_PICKLE_BYTES: Final = 4 << 20
"""It names tensors and holds none: a few hundred KiB. Each byte may be an operation, which takes a microsecond."""
MAX_MODULES: Final = 100
MAX_NAME: Final = 200


@dataclass(frozen=True)
class Inspected:
    """The content of a file, as inspected."""

    format: str
    """`mlagents` or `ludus`."""
    modules: tuple[str, ...]
    """Its content: ML-Agents' modules, or the behaviors of a run of Ludus."""
    size: int
    sha256: str


def inspect(file: Path) -> Inspected:
    """Look into a file. Raises CheckpointInvalid if it is no `checkpoint.pt`, of ML-Agents or of a run of ours."""
    try:
        with opened(file.open("rb", buffering=0)) as archive:
            is_ludus = set(archive.namelist()) == STATE_FILES
            modules = _behaviors(archive) if is_ludus else _modules(archive)
    except DAMAGED as error:
        raise CheckpointInvalid(
            f"it is no archive as torch.save writes it ({error}); upload the checkpoint.pt, or a Behavior-STEP.pt, of "
            "an ML-Agents results folder"
        ) from error
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Inspected(LUDUS if is_ludus else MLAGENTS, modules, file.stat().st_size, digest)


def _behaviors(archive: zipfile.ZipFile) -> tuple[str, ...]:
    """Return the behaviors whose states an archive of ours holds."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointInvalid("its entries are compressed, which ludus never does")
    if archive.getinfo("state.json").file_size > MAX_STATE_BYTES:
        raise CheckpointInvalid(f"its state.json has more than {MAX_STATE_BYTES} bytes")
    try:
        behaviors = json.loads(content(archive, "state.json"))["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointInvalid("its state.json is not the manifest of a checkpoint") from error
    if not isinstance(behaviors, dict) or not behaviors:
        raise CheckpointInvalid("its state.json names no behavior")
    if not all(name and name.isprintable() for name in behaviors):
        raise CheckpointInvalid("its state.json names a behavior that no simulator can have: empty, or not printable")
    return tuple(str(name)[:MAX_NAME] for name in behaviors)[:MAX_MODULES]


def _modules(archive: zipfile.ZipFile) -> tuple[str, ...]:
    """Return the names of the modules that an archive says it holds."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointInvalid("its entries are compressed, which torch.save never does")
    pickles = [entry for entry in entries if entry.filename.count("/") == 1 and entry.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
        raise CheckpointInvalid("it has no data.pkl that names its tensors, as torch.save writes it")
    try:
        texts = {
            argument: None
            for _, argument, _ in pickletools.genops(content(archive, pickles[0].filename))
            if isinstance(argument, str)
            and (argument.startswith(MODULES) and len(argument) <= MAX_NAME and argument.isprintable())
        }
    except (ValueError, EOFError) as error:
        raise CheckpointInvalid(f"its data.pkl is damaged ({error})") from error
    modules = list(texts)
    if POLICY not in modules:
        raise CheckpointInvalid(f"it has no module {POLICY!r}, so that it is no checkpoint of ML-Agents")
    return tuple(modules[:MAX_MODULES])


def publish(store: ArtifactStore, file: Path, inspected: Inspected) -> AbstractContextManager[Stored[Inspected]]:
    """Store a file under a new id for the length of the block; see `published`."""
    checkpoint_id = new_id("ckpt")
    folder = f"checkpoints/{checkpoint_id}"
    return published(store, file, f"{folder}/{FILE}", Stored(checkpoint_id, folder, inspected))
