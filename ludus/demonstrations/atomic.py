"""Replaces files atomically."""

import os
import tempfile
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: readers, also after a power cut, see the old content or the new one, never a part."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
