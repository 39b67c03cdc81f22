"""Output: tables, facts and numbers for people, JSON for programs.

Texts of a server may come from anyone, so that they cannot control the terminal: characters that would change colors,
move the cursor or begin a line are escaped. JSON has its own escapes for them.
"""

import dataclasses
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import click
import yaml

from ludus.console import reader_has_gone

_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON does not escape, but a terminal interprets: controls, line ends, directions, surrogates."""


_NAMES = frozenset({"id", "seq", "number", "version", "seed", "status", "attempt"})
"""Fields whose numbers are names: they are written without commas."""
READER_GONE = 141
"""Exit code of such a command: that of a process that SIGPIPE ends, as shells say it."""
Column = Callable[[Any], object]
"""Takes a record, and returns its value in a column."""
Show = Callable[[Any], str | None]
"""Takes the answer of a command, and returns its line for people, or prints by itself and returns None."""
LINES = "\n\t"
"""Control characters that are kept in texts of several lines: documents, logs."""


class Identified(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str:
        """Its id."""


def echo(text: str = "", *, err: bool = False, nl: bool = True, kept: str = "") -> None:
    """Print one line, or, with `kept=LINES`, several; control characters are escaped."""
    click.echo(printable(text, kept), err=err, nl=nl)


def printable(text: str, kept: str = "") -> str:
    """Return a text with all characters escaped that are neither printable nor in `kept`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in kept or character.isprintable() or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode()
        for character in text.replace("\r\n", "\n")
    )


def print_json(value: object) -> None:
    """Print records, or plain values, as JSON."""
    click.echo(_json(value, indent=2))


def print_json_line(value: object) -> None:
    """Print one record as one line of JSON."""
    click.echo(_json(value))


def end_without_reader() -> None:
    """End a command that prints what happens when nothing reads it any more: `ludus run watch RUN | head -1`."""
    if reader_has_gone():
        sys.exit(READER_GONE)


def _json(value: object, indent: int | None = None) -> str:
    text = json.dumps(value, default=_plain, indent=indent, ensure_ascii=not _takes_all())
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _takes_all() -> bool:
    """Whether standard output has an encoding for all characters. Others get escapes of the format, not of Python."""
    return (sys.stdout.encoding or "utf").lower().startswith("utf")


def print_answer(answer: object, text: Show, *, as_json: bool) -> None:
    """Print the answer of a command: as JSON, or the line that `text` returns; None where `text` prints by itself."""
    if as_json:
        print_json(list(answer) if isinstance(answer, Iterator) else answer)
    elif (line := text(answer)) is not None:
        echo(line)


def id_of(record: Identified) -> str:
    """Return the id of a record: the text for people and scripts of commands that create one."""
    return record.id


def print_ids(records: Iterable[Identified]) -> None:
    """Print the id of each record as soon as there is one."""
    for record in records:
        echo(record.id)


def fields(record: object, columns: str, **computed: Column) -> list[tuple[str, object]]:
    """Return the labels and values of some fields of a record: times as their age, numbers as `number` writes them.

    `columns` has commas between them: `run_id` is the field of this name, with the label "run"; `steps=transitions` has
    its own label. A column of `computed` is no field, or is written in another way.
    """
    labelled = []
    for column in columns.split(", "):
        label, _, name = column.rpartition("=")
        if name in computed:
            value = computed[name](record)
        elif isinstance(value := getattr(record, name), datetime):
            value = ago(value)
        elif name == "size" and isinstance(value, int):
            value = size(value)
        elif isinstance(value, int | float) and name not in _NAMES:
            value = number(value)
        labelled.append((label or re.sub("_(at|id)$", "", name).replace("_", " "), value))
    return labelled


def table(columns: str, **computed: Column) -> Callable[[Iterable[object]], None]:
    """Return a function that prints records as a table, with the columns of `fields`."""

    def show(records: Iterable[object]) -> None:
        rows = [fields(record, columns, **computed) for record in records]
        print_table([label for label, _ in rows[0]] if rows else (), [[value for _, value in row] for row in rows])

    return show


def print_document(document: object) -> None:
    """Print a text that ends its lines itself, or a value as YAML."""
    text = (
        document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False, allow_unicode=_takes_all())
    )
    echo(text, nl=not text.endswith("\n"), kept=LINES)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns, as wide as their contents; columns of numbers are aligned right."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        click.echo("(none)", err=True)
        return
    widths = [max(len(header), *(len(row[i]) for row in cells)) for i, header in enumerate(headers)]
    right = [all(re.fullmatch(r"-?[\d,.]+%?|-|", row[i]) for row in cells) for i in range(len(headers))]
    for line in [[header.upper() for header in headers], *cells]:
        padded = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print a line for each name and value; empty values are left out."""
    cells = [(_cell(name), _cell(value)) for name, value in facts if value not in {None, "", ()}]
    width = max(len(name) for name, _ in cells)
    for name, text in cells:
        click.echo(f"{name.ljust(width)}  {text}")


def number(value: float | None) -> str:
    """Write a number for people: with commas between thousands and four significant digits."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(value: int) -> str:
    """Write a number of bytes for people."""
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def ago(moment: datetime | None) -> str:
    """Return the time since a moment."""
    return "-" if moment is None else f"{span((datetime.now(UTC) - moment).total_seconds())} ago"


def span(seconds: float) -> str:
    """Write a duration in its two largest units."""
    remaining = max(0, int(seconds))
    parts = list[str]()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def _cell(value: object) -> str:
    if isinstance(value, tuple | list):
        return printable(", ".join(str(item) for item in value))
    return "-" if value is None else printable(str(value))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")
