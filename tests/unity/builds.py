"""Executables that a launcher takes for a Unity build."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_build(path: Path, *arguments: str, summary: Path | None = None) -> Path:
    """Write an executable file (POSIX) that plays `tests.unity.player` with these arguments and whatever it is given.

    Its process becomes the player, so that signals reach it. The summary goes to a file if one is named, one line per
    player that came to its end.
    """
    command = shlex.join([sys.executable, "-m", "tests.unity.player", *arguments])
    end = f" >> {shlex.quote(str(summary))}" if summary else ""
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"{end}\n')
    path.chmod(0o755)
    return path
