"""Looking into files, and making new ones of them."""

from pathlib import Path

import pytest

from ludus.demonstrations import merge, read, write
from server.demonstrations.files import DemonstrationFiles
from server.demonstrations.refs import DemonstrationInvalid, DemonstrationRef
from server.kit.artifacts.folder import FolderStore
from server.kit.errors import ArtifactNotFound
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, vector


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


@pytest.fixture
def files(store: FolderStore) -> DemonstrationFiles:
    return DemonstrationFiles(store, 1_000_000)


def keep(store: FolderStore, folder: Path, name: str, **overrides: object) -> DemonstrationRef:
    write(make_demonstration(**overrides), folder / "made.npz")  # type: ignore[arg-type]  # the maker's own keywords
    store.publish(folder / "made.npz", f"demonstrations/{name}/{name}.npz")
    return DemonstrationRef(name, name, f"demonstrations/{name}/{name}.npz", "")


@pytest.mark.parametrize(("suffix", "name"), [(".npz", "ludus"), (".demo", "mlagents")])
def test_a_file_is_what_its_content_says_whatever_it_is_called(
    files: DemonstrationFiles, tmp_path: Path, suffix: str, name: str
) -> None:
    shown = make_demonstration(lengths=(3, 2), endings="et")
    write(shown, tmp_path / f"shown{suffix}")
    (tmp_path / f"shown{suffix}").rename(tmp_path / "upload")

    found = files.inspect(tmp_path / "upload")

    assert found.format == name
    assert (found.summary.transitions, found.summary.episodes) == (5, 2)
    assert found.spec.actions == shown.spec.actions


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"PK\x03\x04 and no archive", b"behaviors: {}", bytes(range(256)) * 50]
)
def test_garbage_is_no_demonstration(files: DemonstrationFiles, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "garbage").write_bytes(content)

    with pytest.raises(DemonstrationInvalid) as caught:
        files.inspect(tmp_path / "garbage")

    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_decodes_to_too_much_is_refused(store: FolderStore, tmp_path: Path) -> None:
    write(make_demonstration(lengths=(400,)), tmp_path / "long.npz")

    with pytest.raises(DemonstrationInvalid, match="more than"):
        DemonstrationFiles(store, 1000).inspect(tmp_path / "long.npz")


def test_a_merged_file_holds_all_episodes_in_their_order(
    files: DemonstrationFiles, store: FolderStore, tmp_path: Path
) -> None:
    sources = [keep(store, tmp_path, name, seed=seed) for seed, name in enumerate("abc")]

    files.merge(sources, tmp_path / "merged.npz")

    assert_equal(read(tmp_path / "merged.npz"), merge([make_demonstration(seed=seed) for seed in range(3)]))


def test_what_does_not_fit_is_not_merged(files: DemonstrationFiles, store: FolderStore, tmp_path: Path) -> None:
    one = keep(store, tmp_path, "a", spec=make_spec(vector(2), continuous=1))
    other = keep(store, tmp_path, "b", spec=make_spec(vector(3), continuous=1))

    with pytest.raises(DemonstrationInvalid, match=r"\(3,\).*\(2,\)"):
        files.merge([one, other], tmp_path / "merged.npz")


def test_merging_takes_no_more_memory_than_is_allowed(store: FolderStore, tmp_path: Path) -> None:
    sources = [keep(store, tmp_path, name, lengths=(400,)) for name in "abc"]

    with pytest.raises(DemonstrationInvalid, match=r"c cannot be used.*more than"):
        DemonstrationFiles(store, 20_000).merge(sources, tmp_path / "merged.npz")


def test_a_sample_is_the_one_that_the_seed_draws(files: DemonstrationFiles, store: FolderStore, tmp_path: Path) -> None:
    source = keep(store, tmp_path, "a", lengths=(50,))

    files.subsample(source, tmp_path / "sample.npz", count=10, seed=3)

    assert_equal(read(tmp_path / "sample.npz"), make_demonstration(lengths=(50,)).subsample(10, 3))


def test_more_than_there_is_cannot_be_drawn(files: DemonstrationFiles, store: FolderStore, tmp_path: Path) -> None:
    source = keep(store, tmp_path, "a")

    with pytest.raises(DemonstrationInvalid, match="6 transitions were asked for; there are 5"):
        files.subsample(source, tmp_path / "sample.npz", count=6)


def test_a_file_that_is_missing_is_said_to_be(files: DemonstrationFiles, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    with pytest.raises(ArtifactNotFound):
        files.subsample(DemonstrationRef("dem_x", "x", "demonstrations/x/x.npz", ""), tmp_path / "sample.npz", count=1)


def test_a_published_file_stays_only_if_its_row_does(
    files: DemonstrationFiles, store: FolderStore, tmp_path: Path
) -> None:
    write(make_demonstration(), tmp_path / "shown.npz")
    inspected = files.inspect(tmp_path / "shown.npz")

    with files.publish(tmp_path / "shown.npz", inspected) as lost:
        assert store.size(lost.path) == inspected.size
    with files.publish(tmp_path / "shown.npz", inspected) as kept:
        kept.keep()

    assert store.size(kept.path) == inspected.size
    with pytest.raises(ArtifactNotFound):
        store.size(lost.path)
