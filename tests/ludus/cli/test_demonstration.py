"""`ludus demonstration` against a real server."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ludus.cli import demonstration, exits
from ludus.client import Client, NotFound, ProblemAnswer
from ludus.demonstrations import read, thin, write
from tests.ludus.cli.conftest import Invoke, as_json
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, vector
from tests.recordings import content, frames
from tests.server.app.world import World


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(make_demonstration(lengths=(5, 3)), tmp_path / "expert.npz")
    return tmp_path / "expert.npz"


def test_a_demonstration_is_uploaded_listed_shown_and_downloaded(cli: Invoke, file: Path, tmp_path: Path) -> None:
    uploaded = cli("demonstration", "upload", str(file)).stdout.strip()
    listed = cli("demonstration", "list", "--filter", "name = expert").stdout
    shown = cli("demonstration", "show", uploaded).stdout
    copy = tmp_path / "copy.npz"
    downloaded = cli("demonstration", "download", uploaded, "-o", str(copy)).stdout.strip()

    assert listed.splitlines()[1].split()[:5] == [uploaded, "expert", "Walker?team=0", "8", "2"]
    facts = dict(
        line.split(maxsplit=1) for line in shown.splitlines() if not line.startswith(("observation", "branch"))
    )
    assert (facts["steps"], facts["episodes"]) == ("8", "2")
    assert "observation 0  2 float32 vector 2" in shown
    assert "branch 0" in shown
    assert downloaded == str(copy)
    assert copy.read_bytes() == file.read_bytes()
    assert as_json(cli("demonstration", "show", uploaded, "--json"))["summary"]["transitions"] == 8


def test_several_are_merged_and_a_few_steps_drawn(cli: Invoke, file: Path, tmp_path: Path) -> None:
    both = cli("demonstration", "upload", str(file), str(file)).stdout.split()
    merged = as_json(cli("demonstration", "merge", *both, "--name", "all", "--json"))
    sample = cli("demonstration", "subsample", merged["id"], "4", "--seed", "9").stdout.strip()

    cli("demonstration", "download", sample, "-o", str(tmp_path / "sample.npz"))

    whole = make_demonstration(lengths=(5, 3))
    assert (merged["name"], merged["transitions"]) == ("all", 16)
    assert read(tmp_path / "sample.npz").steps == 4
    assert f"4 transitions of {merged['id']}, seed 9" in cli("demonstration", "show", sample).stdout
    assert "merged: " + ", ".join(both) in cli("demonstration", "show", merged["id"]).stdout
    direct = cli("demonstration", "subsample", both[0], "4", "--seed", "2").stdout.strip()
    cli("demonstration", "download", direct, "-o", str(tmp_path / "direct.npz"))
    assert_equal(read(tmp_path / "direct.npz"), whole.subsample(4, 2))


def test_whole_episodes_and_every_nth_transition_are_kept(cli: Invoke, file: Path, tmp_path: Path) -> None:
    uploaded, whole = cli("demonstration", "upload", str(file)).stdout.strip(), make_demonstration(lengths=(5, 3))

    for options, said in (
        (("--episodes", "1"), f"1 episodes of {uploaded}"),
        (("--every", "2"), f"every 2. transition of {uploaded}"),
        (
            ("--episodes", "1", "--every", "2", "--seed", "3"),
            f"every 2. transition of 1 episodes of {uploaded}, seed 3",
        ),
    ):
        made = cli("demonstration", "subsample", uploaded, *options).stdout.strip()
        cli("demonstration", "download", made, "-o", str(tmp_path / "part.npz"))
        wanted = {name.removeprefix("--"): int(value) for name, value in zip(options[::2], options[1::2], strict=True)}
        assert_equal(read(tmp_path / "part.npz"), thin(whole, **wanted))
        assert said in cli("demonstration", "show", made).stdout


@pytest.mark.parametrize(
    ("arguments", "problem"), [((), "say what to keep"), (("3", "--every", "2"), "leave one of them out")]
)
def test_a_part_that_nobody_described_is_a_usage_error(cli: Invoke, arguments: tuple[str, ...], problem: str) -> None:
    result = cli("demonstration", "subsample", f"dem_{'0' * 26}", *arguments)

    assert (result.exit_code, problem in result.stderr) == (exits.Exit.USAGE, True)


def test_what_is_wrong_is_a_sentence_and_an_exit_code(cli: Invoke, file: Path, tmp_path: Path) -> None:
    (tmp_path / "garbage.demo").write_bytes(b"no demonstration")
    uploaded = cli("demonstration", "upload", str(file)).stdout.strip()

    garbage = cli("demonstration", "upload", str(tmp_path / "garbage.demo"))
    too_many = cli("demonstration", "subsample", uploaded, "9")
    missing = cli("demonstration", "upload", str(tmp_path / "nothing.demo"))
    unwritable = cli("demonstration", "download", uploaded, "-o", str(file / "x.npz"))

    assert (garbage.exit_code, "cannot be used" in garbage.stderr) == (exits.Exit.REFUSED, True)
    assert (too_many.exit_code, "there are 8" in too_many.stderr) == (exits.Exit.REFUSED, True)
    assert missing.exit_code == exits.Exit.USAGE
    assert unwritable.exit_code == exits.Exit.REFUSED


def test_a_deleted_demonstration_is_gone(cli: Invoke, world: World, file: Path) -> None:
    uploaded = cli("demonstration", "upload", str(file)).stdout.strip()

    assert cli("demonstration", "delete", uploaded).exit_code == 0

    assert cli("demonstration", "show", uploaded).exit_code == exits.Exit.REFUSED
    with Client(world.server) as client, pytest.raises(NotFound):
        client.demonstrations.delete(uploaded)


def test_the_client_keeps_one_of_a_repeated_upload(world: World, file: Path) -> None:
    with Client(world.server) as client:
        first = client.demonstrations.upload(file, idempotency_key="upload-client")
        second = client.demonstrations.upload(file, idempotency_key="upload-client")

        assert first == second
        assert first.created_at.tzinfo is not None
        assert [each.id for each in client.demonstrations.list(f'name = "{first.id}"')] == [first.id]


def test_what_cannot_be_merged_names_both_shapes(world: World, tmp_path: Path) -> None:
    with Client(world.server) as client:
        ids = []
        for size in (2, 3):
            write(make_demonstration(make_spec(vector(size), continuous=1)), tmp_path / "part.npz")
            ids.append(client.demonstrations.upload(tmp_path / "part.npz").id)

        with pytest.raises(ProblemAnswer, match=r"\(3,\).*\(2,\)"):
            client.demonstrations.merge(ids)


def test_a_folder_is_uploaded_file_by_file_in_the_order_of_the_names(cli: Invoke, tmp_path: Path) -> None:
    for name in ("b.demo", "a.npz"):
        write(make_demonstration(lengths=(3,)), tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a recording")
    (tmp_path / "more").mkdir()
    write(make_demonstration(), tmp_path / "more" / "c.demo")

    stored = as_json(cli("demonstration", "upload", str(tmp_path), "--json"))

    assert [(each["name"], each["format"]) for each in stored] == [("a", "ludus"), ("b", "mlagents")]


def test_a_folder_without_recordings_is_refused(cli: Invoke, tmp_path: Path) -> None:
    result = cli("demonstration", "upload", str(tmp_path))

    assert result.exit_code == exits.Exit.REFUSED
    assert "has no .demo or .npz file" in result.stderr


def test_what_was_stored_before_a_refusal_is_told(cli: Invoke, tmp_path: Path) -> None:
    write(make_demonstration(), tmp_path / "a.demo")
    (tmp_path / "b.demo").write_bytes(b"garbage")

    result = cli("demonstration", "upload", str(tmp_path))

    assert result.exit_code == exits.Exit.REFUSED
    assert result.stdout.startswith("dem_")


def test_a_histogram_shows_whatever_is_there() -> None:
    assert demonstration.bars([0, 1, 50, 100]) == " ▁▄█"
    assert demonstration.bars([0, 0]) == "  "


def test_a_recording_and_a_parquet_file_are_converted_and_uploaded(cli: Invoke, tmp_path: Path) -> None:
    recorded, table = tmp_path / "game.ludusrec", tmp_path / "steps.parquet"
    recorded.write_bytes(content(frames(5)))
    rows = {"observation": [[1.0, 2.0]] * 3, "action": [0, 2, 1], "reward": [0.0] * 3, "episode": [1] * 3}
    pq.write_table(pa.table({**rows, "terminated": [False, False, True], "truncated": [False] * 3}), table)

    of_recording = cli("demonstration", "convert", str(recorded), "-o", str(tmp_path / "game.npz")).stdout
    of_table = cli("demonstration", "convert", str(table), "-o", str(tmp_path / "table.npz")).stdout

    assert of_recording == f"{tmp_path / 'game.npz'}: 8 steps in 2 pieces\n"
    assert of_table.endswith("3 steps in 1 pieces; ALL REWARDS ARE 0, so that only cloning can learn from it\n")
    uploaded = cli("demonstration", "upload", str(tmp_path / "table.npz")).stdout.strip()
    assert as_json(cli("demonstration", "show", uploaded, "--json"))["behavior"] == "steps"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("game.ludusrec", "game.ludusrec: "),
        ("steps.parquet", "steps.parquet: it is no Parquet file that can be read"),
        ("minari", "data/main_data.hdf5: it cannot be read"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_file(
    cli: Invoke, tmp_path: Path, name: str, sentence: str
) -> None:
    source = tmp_path / name
    if source.suffix:
        source.write_text("no")
    else:
        source.mkdir()

    refused = cli("demonstration", "convert", str(source), "-o", str(tmp_path / "out.npz"))

    assert (refused.exit_code, sentence in refused.stderr) == (exits.Exit.REFUSED, True)
    assert not (tmp_path / "out.npz").exists()
