"""The sign of life of a worker: a file that its slots touch. A probe looks at its age, without an interpreter.

    test -n "$(find "$LUDUS_HOME/worker.alive" -mmin -1)"

It says that every slot gets on: its beat, which touches the file, and the thread that executes its run. It does not
depend on the database and the broker, whose outages a worker survives.
"""

import time
from pathlib import Path
from typing import Final

import structlog

FRESH_SECONDS: Final = 60.0
"""A file that was not touched for so long is no sign of life."""
_log = structlog.get_logger(__name__)


def touch(file: Path) -> None:
    """Give a sign of life. A file that cannot be written is logged."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        _log.warning("sign_of_life_not_written", file=str(file), error=error.strerror)


def is_alive(file: Path) -> bool:
    """Return whether the file was touched recently."""
    try:
        return time.time() - file.stat().st_mtime < FRESH_SECONDS
    except OSError:
        return False
