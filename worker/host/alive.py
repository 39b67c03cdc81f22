"""The sign of life of a worker: a file that its slots touch. A probe looks at its age, without an interpreter.

    test -n "$(find "$LUDUS_HOME/worker.alive" -mmin -1)"

It says that the slots' processes work. It does not depend on the database and the broker, whose outages a worker
survives.
"""

import threading
import time
from pathlib import Path
from typing import Final

import structlog

TOUCH_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 60.0
"""A file that was not touched for so long is no sign of life."""
_log = structlog.get_logger(__name__)


def keep_alive(file: Path, stop: threading.Event) -> None:
    """Touch the file until `stop` is set. A file that cannot be written is logged, and tried again."""
    while not stop.is_set():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:
            _log.warning("sign_of_life_not_written", file=str(file), error=error.strerror)
        stop.wait(TOUCH_SECONDS)


def is_alive(file: Path) -> bool:
    """Return whether the file was touched recently."""
    try:
        return time.time() - file.stat().st_mtime < FRESH_SECONDS
    except OSError:
        return False
