"""Files of text that commands read: configurations, curricula, scripts. A sentence for each mistake."""

import codecs
import os
import select
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

STANDARD_INPUT: Final = "-"
MAX_BYTES: Final = 4 << 20
"""Largest text that is read: four times what the server takes, which says more about what is too large."""
WRITER_SECONDS: Final = 10.0
"""How long a named pipe may have nothing to read."""
_MARKS: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order mark -> encoding; longer marks first, because one begins with another."""


class Unreadable(ValueError):
    """A file that cannot be read as text; the message names it, and says what to do."""


@dataclass(frozen=True)
class Text:
    """A text, and the name of its file."""

    name: str
    content: str


class TextFile(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """The type of an argument that names a file of text; `-` is standard input."""

    name = "filename"

    def convert(self, value: str | Text, param: click.Parameter | None, ctx: click.Context | None) -> Text:
        """Read the file."""
        if isinstance(value, Text):
            return value
        try:
            return Text("<stdin>" if value == STANDARD_INPUT else value, read_text(value))
        except Unreadable as error:
            self.fail(str(error), param, ctx)


def read_text(path: str | Path) -> str:
    """Return the text of a file in UTF-8, without its byte order mark; `-` is standard input. Raises Unreadable."""
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == STANDARD_INPUT else _read(Path(path))
    except OSError as error:
        raise Unreadable(f"{name} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{name} has more than {MAX_BYTES >> 20} MiB, which no text for Ludus needs")
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            raise Unreadable(f"{name} is {encoding} text; save it as UTF-8")
    if b"\0" in data:
        where = "as UTF-16 has beside each letter" if data.count(b"\0") > len(data) // 3 else "as no text has"
        raise Unreadable(f"{name} has zero bytes, {where}; name a text file in UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start : error.start + 1]
        guess = byte.decode("cp1252", errors="replace")
        raise Unreadable(
            f"{name}, line {line}: the byte 0x{byte.hex().upper()} is not UTF-8 (in Windows' cp1252 it is {guess!r}); "
            "save the file as UTF-8"
        ) from error


def _read(path: Path) -> bytes:
    """Read a little more than MAX_BYTES at most. Raises OSError; Unreadable for what is no file."""
    kind = path.stat().st_mode
    if stat.S_ISFIFO(kind):
        return _read_pipe(path)
    if not stat.S_ISREG(kind):
        raise Unreadable(f"{path} is a {'folder' if stat.S_ISDIR(kind) else 'device or socket'}; name a file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _read_pipe(path: Path) -> bytes:
    """Read a named pipe, or a shell's `<(COMMAND)`, to its end; a pipe to which nothing writes is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    content = b""
    deadline = time.monotonic() + WRITER_SECONDS
    try:
        while len(content) <= MAX_BYTES:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Unreadable(f"{path} is a pipe, and nothing was written to it for {WRITER_SECONDS:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part and (content or time.monotonic() > deadline):
                break
            if not part:  # no writer has opened it yet
                time.sleep(0.05)
                continue
            content += part
            deadline = time.monotonic() + WRITER_SECONDS
    finally:
        os.close(descriptor)
    if not content:
        raise Unreadable(f"{path} is a pipe, and nothing was written to it for {WRITER_SECONDS:g} s")
    return content
