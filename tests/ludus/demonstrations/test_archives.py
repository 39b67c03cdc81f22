"""An archive of a stranger costs no more to look into than it weighs."""

import io
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ludus.demonstrations.archives import DAMAGED, MAX_TABLE_BYTES, content, opened

MEBI = 1 << 20


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Fail if the block takes more memory at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def packed(method: int, size: int = 64 * MEBI) -> bytes:
    """Return an archive with one entry of zeros that says it has 100 bytes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        with archive.open("zeros", "w") as entry:
            for _ in range(size // MEBI):
                entry.write(bytes(MEBI))
        archive.infolist()[0].file_size = 100
    return written.getvalue()


def test_what_an_archive_holds_is_read() -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("name", b"value")

    with opened(written) as archive:
        assert content(archive, "name") == b"value"


def test_an_entry_that_lies_about_its_size_takes_no_more_than_it_says() -> None:
    file = packed(zipfile.ZIP_DEFLATED)

    with at_most(4 * MEBI), pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):  # noqa: SIM117
        with opened(io.BytesIO(file)) as archive:
            content(archive, "zeros")


@pytest.mark.long
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_entries_that_could_only_be_unpacked_whole_are_refused(method: int) -> None:
    file = packed(method)

    with at_most(4 * MEBI), pytest.raises(zipfile.BadZipFile, match="'zeros' is packed by method"):  # noqa: SIM117
        with opened(io.BytesIO(file)) as archive, archive.open("zeros") as entry:
            entry.read(8)


def test_a_table_of_contents_of_very_many_entries_is_not_read() -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("a", b"")
    once = written.getvalue()
    start = once.index(b"PK\x01\x02")
    end = once.index(b"PK\x05\x06")
    entry = once[start:end]
    count = MAX_TABLE_BYTES // len(entry) + 1
    table = entry * count
    tail = once[end : end + 12] + len(table).to_bytes(4, "little") + once[end + 16 :]

    with at_most(4 * MEBI), pytest.raises(zipfile.BadZipFile, match="its table of contents has"):  # noqa: SIM117
        with opened(io.BytesIO(once[:start] + table + tail)):
            pass


def test_a_damaged_archive_raises_what_is_listed_and_nothing_else() -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("one", "two/three", "vier-\u00e4"):
            archive.writestr(name, b"value" * 20)
    whole, refused = written.getvalue(), 0

    for position in range(len(whole)):
        for flipped in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= flipped
            try:
                with opened(io.BytesIO(damaged)) as archive:
                    for name in archive.namelist():
                        content(archive, name)
            except DAMAGED:
                refused += 1

    assert refused > len(whole)
