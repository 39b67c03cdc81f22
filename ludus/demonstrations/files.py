"""Reading and writing demonstrations, whichever of the two formats a file has."""

from pathlib import Path
from typing import Final

from ludus.demonstrations import mlagents, recording
from ludus.demonstrations.demonstration import Demonstration, DemonstrationError
from ludus.paths import AnyPath, replaced

MAX_BYTES: Final = 8 << 30
"""Maximum number of bytes of a decoded file: pictures and archives are compressed."""
FOLDER_SUFFIXES: Final = (".demo", ".npz")


def read(path: AnyPath, *, legacy_pairing: bool = False, max_bytes: int = MAX_BYTES) -> Demonstration:
    """Read one file: ML-Agents' `.demo`, or our own `.npz`. The content decides on the format, not the name.

    `legacy_pairing` concerns ML-Agents' files only: see `ludus.demonstrations.mlagents`. An interrupted recording
    of our own is read with its journal, which lies next to it.

    Raises `DemonstrationError` for a file that is missing, damaged, or decodes to more than `max_bytes`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(len(recording.MAGIC)) != recording.MAGIC:
                file.seek(0)
                return mlagents.decode(file.read(), legacy_pairing=legacy_pairing, max_bytes=max_bytes)
        demonstration, _ = recording.read_recording(path, max_bytes)
    except DemonstrationError as error:
        raise DemonstrationError(error.problem, error.path or path, error.position) from None
    except OSError as error:
        raise DemonstrationError(f"it cannot be read: {error.strerror or error}", path) from None
    if demonstration is None:
        raise DemonstrationError("there is no such file", path)  # it was removed a moment ago
    return demonstration


def load(path: AnyPath, *, legacy_pairing: bool = False, max_bytes: int = MAX_BYTES) -> list[Demonstration]:
    """Read a file, or every `.demo` and `.npz` of a folder (not of its folders), in the order of their names.

    Raises `DemonstrationError` if there is none, or one cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return [read(path, legacy_pairing=legacy_pairing, max_bytes=max_bytes)]
    files = sorted(file for file in path.iterdir() if file.suffix in FOLDER_SUFFIXES)
    if not files:
        raise DemonstrationError(f"there is no {' or '.join(FOLDER_SUFFIXES)} file in this folder", path)
    return [read(file, legacy_pairing=legacy_pairing, max_bytes=max_bytes) for file in files]


def write(demonstration: Demonstration, path: AnyPath) -> None:
    """Write one file: ML-Agents' format if its name ends in `.demo`, else our own. Existing files are replaced.

    ML-Agents' format cannot hold everything: see `ludus.demonstrations.mlagents.encode`.
    """
    path = Path(path)
    encode = mlagents.encode if path.suffix == ".demo" else recording.encode
    with replaced(path, 0o644) as file:
        file.write(encode(demonstration))
