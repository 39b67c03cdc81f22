"""Our own recordings survive the file, a kill, and whoever wrote the file."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import DemonstrationError, Recorder, read, write
from ludus.demonstrations.recording import journal_of
from ludus.protocol.spec import DimensionProperty, ObservationSpec, ObservationType
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, picture, vector

RICH = make_spec(
    vector(3),
    picture(3),
    ObservationSpec((4, 2), "bullets", dimension_properties=(DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)),
    ObservationSpec((2,), "goal", type=ObservationType.GOAL_SIGNAL),
    continuous=2,
    branches=(3, 2),
)


class TestFile:
    def test_everything_survives(self, tmp_path: Path) -> None:
        shown = make_demonstration(
            RICH,
            lengths=(3, 2, 4),
            endings="etc",
            from_start=np.array([True, False, True]),
            group_ids=np.arange(9, dtype=np.int32),
            group_rewards=np.arange(9, dtype=np.float32),
            action_masks=np.ones((9, 5), np.uint8),
        )

        write(shown, tmp_path / "shown.npz")

        assert_equal(read(tmp_path / "shown.npz"), shown)
        assert read(tmp_path / "shown.npz").spec == RICH

    def test_equal_demonstrations_give_equal_files(self, tmp_path: Path) -> None:
        for name in ("a.npz", "b.npz"):
            write(make_demonstration(), tmp_path / name)

        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()

    def test_numpy_reads_it_without_pickle(self, tmp_path: Path) -> None:
        shown = make_demonstration()
        write(shown, tmp_path / "shown.npz")

        with np.load(tmp_path / "shown.npz", allow_pickle=False) as archive:
            np.testing.assert_array_equal(archive["rewards"], shown.rewards)
            np.testing.assert_array_equal(archive["observations/0"], shown.observations[0])

    def test_writing_replaces_at_once_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        write(make_demonstration(), path)
        write(make_demonstration(seed=1), path)

        assert [file.name for file in tmp_path.iterdir()] == ["shown.npz"]
        assert_equal(read(path), make_demonstration(seed=1))


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write a file again, with its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def array(values: Any, **options: Any) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(values), **options)
    return content.getvalue()


class TestHostileFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        write(make_demonstration(), tmp_path / "shown.npz")
        return tmp_path / "shown.npz"

    def test_every_prefix_is_refused(self, path: Path) -> None:
        content = path.read_bytes()
        for keep in range(4, len(content), 97):
            path.write_bytes(content[:keep])
            with pytest.raises(DemonstrationError, match=r"shown\.npz: the archive is damaged or incomplete"):
                read(path)

    def test_flipped_bytes_never_raise_anything_else(self, path: Path) -> None:
        content, rng = path.read_bytes(), np.random.default_rng(1)
        refused = 0
        for _ in range(300):
            damaged = bytearray(content)
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            try:
                read(path)
            except DemonstrationError:
                refused += 1

        assert refused > 150

    @pytest.mark.parametrize(
        "header",
        [
            b"{[1]: 2}",
            b"{1: 2, 'shape': (3,)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 4: 5}",
            b"{'descr': ('<f4', (1,)), 'fortran_order': False, 'shape': (3,)}",
            b"{'descr': {}, 'fortran_order': False, 'shape': (3,)}",
            b"{'descr': [('a', '<f4', -1)], 'fortran_order': False, 'shape': (3,)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + b"f" * 5000 + b",)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 2000 + b")}",
            b"-" * 9000 + b"1",
            b"(" * 9000,
            b"[" * 150 + b"]" * 150,
            b"'" * 3,
            b"(1,\n",
            b"\\",
            b"  x\n y",
            b"\xff" * 100,
            b"\0" * 100,
            b"",
        ],
    )
    def test_no_header_of_an_array_raises_anything_else(self, path: Path, header: bytes) -> None:
        hostile = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12)
        rewritten(path, lambda members: members.update({"rewards.npy": hostile}))

        with pytest.raises(DemonstrationError):
            read(path)

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_what_is_packed_so_that_it_unpacks_at_once_is_refused(self, path: Path, method: int) -> None:
        with zipfile.ZipFile(path, "a", method) as archive:
            archive.writestr("extra", bytes(1000))

        with pytest.raises(DemonstrationError, match="packed by method"):
            read(path)

    def test_a_pickle_is_not_opened(self, path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return (pytest.fail, ("it was unpickled",))

        pickled = array(np.array([Bomb()], object), allow_pickle=True)
        rewritten(path, lambda members: members.update({"rewards.npy": pickled}))

        with pytest.raises(DemonstrationError, match=r"rewards\.npy holds object"):
            read(path)

    def test_an_array_that_says_more_than_it_holds_asks_for_no_memory(self, path: Path) -> None:
        lie = io.BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**11,)}
        np.lib.format.write_array_header_1_0(lie, header)
        rewritten(path, lambda members: members.update({"rewards.npy": lie.getvalue() + bytes(20)}))

        with pytest.raises(DemonstrationError, match=r"rewards\.npy says shape \(100000000000,\) .* holds 20 bytes"):
            read(path)

    def test_what_decodes_to_more_than_is_allowed_is_not_decoded(self, path: Path) -> None:
        rewritten(path, lambda members: members.update({"rewards.npy": array(np.zeros(10_000_000, np.float32))}))
        assert path.stat().st_size < 100_000

        with pytest.raises(DemonstrationError, match="more than the 1,000,000 that are allowed"):
            read(path, max_bytes=1_000_000)

    @pytest.mark.parametrize(
        ("member", "content", "message"),
        [
            ("rewards.npy", array(np.zeros(4, np.float32)), r"continuous has shape \(5, 0\), not \(4, 0\)"),
            ("rewards.npy", array(np.full(5, np.nan, np.float32)), "not finite, in row 0"),
            ("rewards.npy", b"no array", r"rewards\.npy is no array"),
            ("rewards.npy", array(np.zeros(5, "U3")), r"rewards\.npy holds <U3"),
            ("starts.npy", array(np.array([0, 9])), "starts must begin with 0 and grow"),
            ("demonstration.json", b"{", "demonstration.json is invalid"),
            ("demonstration.json", b"[]", "demonstration.json is invalid"),
            ("demonstration.json", b"[" * 100_000, "demonstration.json is invalid"),
            ("demonstration.json", json.dumps({"format": "other"}).encode(), "names the format 'other'"),
            (
                "demonstration.json",
                json.dumps({"format": "ludus-demonstration", "version": 2}).encode(),
                "has version 2 of the format, this program reads version 1; update it",
            ),
            (
                "demonstration.json",
                json.dumps({"format": "ludus-demonstration", "version": 1, "spec": {}, "flushes": 0}).encode(),
                "demonstration.json is invalid",
            ),
        ],
    )
    def test_what_is_wrong_is_said(self, member: str, content: bytes, message: str, path: Path) -> None:
        rewritten(path, lambda members: members.update({member: content}))

        with pytest.raises(DemonstrationError, match=message) as raised:
            read(path)

        assert raised.value.path == path

    @pytest.mark.parametrize("member", ["rewards.npy", "observations/0.npy", "demonstration.json"])
    def test_what_is_missing_is_named(self, member: str, path: Path) -> None:
        rewritten(path, lambda members: members.pop(member) and None)

        with pytest.raises(DemonstrationError, match=member):
            read(path)


class TestRecorder:
    def test_what_was_flushed_is_there_without_being_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        recorder = Recorder(path)
        parts = [make_demonstration(seed=seed) for seed in range(20)]

        for count, part in enumerate(parts, 1):
            recorder.flush([part])
            found = read(path)
            assert found.pieces == 2 * count
            assert_equal(found.pick([2 * count - 2, 2 * count - 1]), part)

    def test_closing_leaves_one_file_with_everything_in_order(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        recorder = Recorder(path)
        for seed in range(7):
            recorder.flush([make_demonstration(seed=seed)])

        recorder.close()

        assert [file.name for file in tmp_path.iterdir()] == ["shown.npz"]
        assert_equal(read(path).pick([4, 5]), make_demonstration(seed=2))

    @pytest.mark.long
    def test_each_byte_is_written_a_handful_of_times(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        recorder = Recorder(path)
        rewritings, seen = 0, None
        for seed in range(128):
            recorder.flush([make_demonstration(lengths=(200,), seed=seed)])
            stat = path.stat()
            rewritings += (stat.st_ino, stat.st_mtime_ns) != seen
            seen = (stat.st_ino, stat.st_mtime_ns)

        assert rewritings <= 12

    def test_it_goes_on_where_another_process_was_killed(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        for seed in range(5):
            Recorder(path).flush([make_demonstration(seed=seed)])

        assert read(path).pieces == 10
        assert_equal(read(path).pick([8, 9]), make_demonstration(seed=4))

    def test_half_a_flush_is_ignored_and_does_not_hide_later_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        first = Recorder(path)
        for seed in range(3):
            first.flush([make_demonstration(seed=seed, lengths=(9, 9))])
        with journal_of(path).open("ab") as journal:
            journal.write(struct.pack("<QQI", 3, 5000, 0) + b"half")

        assert read(path).pieces == 6
        Recorder(path).flush([make_demonstration(seed=3)])
        assert read(path).pieces == 8

    def test_a_kill_between_the_two_steps_of_joining_doubles_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        recorder = Recorder(path)
        for seed in range(3):
            recorder.flush([make_demonstration(seed=seed, lengths=(9, 9))])
        journal = journal_of(path).read_bytes()
        recorder.close()
        journal_of(path).write_bytes(journal)

        assert read(path).pieces == 6

    def test_episodes_of_another_shape_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        Recorder(path).flush([make_demonstration(make_spec(vector(2), branches=(3,)))])

        with pytest.raises(DemonstrationError, match=r"shape \(4,\).* of the recording .*shown\.npz has shape \(2,\)"):
            Recorder(path).flush([make_demonstration(make_spec(vector(4), branches=(3,)))])

    def test_a_file_that_is_no_recording_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "precious.npz"
        path.write_text("my thesis")

        with pytest.raises(DemonstrationError):
            Recorder(path)
        assert path.read_text() == "my thesis"
