"""The type of file names in the SDK and the client: text, or a path object."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]


@contextmanager
def replaced(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Replace a file at the end of the block by the bytes that the block writes; an error keeps the old content.

    Readers, also after a power cut, see the old content or the new one, never a part.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
