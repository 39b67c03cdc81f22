import csv
import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ludus.cli import exits
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


def test_newest_values_are_shown_and_all_points_are_written(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="measured")["id"]).start()
    trainer.measure("Policy/Entropy", [0.5, 0.25])
    file = tmp_path / "run.parquet"

    lines = cli("run", "metrics", "measured").stdout.splitlines()
    written = cli("run", "metrics", "measured", "--parquet", str(file))
    refused = cli("run", "metrics", "measured", "--parquet", str(file / "below.parquet"))
    missing = cli("run", "metrics", "absent", "--parquet", str(tmp_path / "none.parquet"))

    assert [line.split() for line in lines] == [
        ["BEHAVIOR", "KEY", "STEP", "VALUE"],
        ["CartPole", "Policy/Entropy", "200", "0.25"],
    ]
    assert as_json(cli("run", "metrics", "measured", "--json"))[0]["value"] == 0.25
    assert written.stdout.strip() == str(file)
    assert pq.read_table(file)["value"].to_pylist() == [0.5, 0.25]
    assert (refused.exit_code, "cannot write" in refused.stderr) == (exits.Exit.REFUSED, True)
    assert (missing.exit_code, "absent" in missing.stderr) == (exits.Exit.REFUSED, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.parquet"]


REWARD = "Environment/Cumulative Reward"


@pytest.fixture(scope="module", autouse=True)
def _runs(world: World) -> None:
    """Two runs with rewards at steps 100, 200, ..., the first one with an entropy, too."""
    for name, rewards in (("first", [1.0, 2.0, 3.0, 4.0]), ("second", [10.0, float("nan")])):
        trainer = world.claim(world.create(name=name)["id"]).start()
        trainer.measure(REWARD, rewards)
        if name == "first":
            trainer.measure("Policy/Entropy", [0.5])
            trainer.measure("Resources/Trainer CPU", [1.25], behavior="")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_line_for_each_point_with_the_name_that_the_user_gave(cli: Invoke) -> None:
    found = cli("run", "series", "second", "first", "--metric", "reward", "--metric", "Policy/Entropy", "--csv", "-")

    assert found.stdout.splitlines()[0] == "run,behavior,key,step,time,mean,minimum,maximum,count"
    assert found.stdout.splitlines()[1] == (f"second,CartPole,{REWARD},100,1970-01-01T00:16:40+00:00,10.0,10.0,10.0,1")
    assert [(row["run"], row["key"], row["step"], row["mean"]) for row in rows(found.stdout)] == [
        ("second", REWARD, "100", "10.0"),
        ("second", REWARD, "200", ""),
        *(("first", REWARD, str(100 * number), f"{number}.0") for number in (1, 2, 3, 4)),
        ("first", "Policy/Entropy", "100", "0.5"),
    ]


def test_a_window_is_thinned_to_so_many_points_and_written_to_a_file(cli: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "reward.csv"
    options = ("--metric", "reward", "--from-step", "200", "--to-step", "300", "--points", "1", "--csv", str(file))

    quiet = cli("run", "series", "first", *options)
    refused = cli("run", "series", "first", "--metric", "reward", "--csv", str(tmp_path / "none" / "reward.csv"))

    (row,) = rows(file.read_text())
    assert quiet.stdout == ""
    assert {name: row[name] for name in ("step", "mean", "minimum", "maximum", "count")} == {
        "step": "300",
        "mean": "2.5",
        "minimum": "2.0",
        "maximum": "3.0",
        "count": "2",
    }
    assert (refused.exit_code, "cannot write" in refused.stderr) == (exits.Exit.REFUSED, True)


def test_a_table_is_for_people(cli: Invoke) -> None:
    lines = cli("run", "series", "first", "--metric", "reward", "--points", "2").stdout.splitlines()
    of_the_run = cli("run", "series", "first", "--metric", "Resources/Trainer CPU", "--behavior", "").stdout

    assert lines[0].split() == ["RUN", "BEHAVIOR", "KEY", "STEP", "TIME", "MEAN", "MINIMUM", "MAXIMUM", "COUNT"]
    assert lines[1].split() == f"first CartPole {REWARD} 200 1970-01-01 00:16:41 1.5 1 2 2".split()
    assert len(lines) == 3
    assert of_the_run.splitlines()[1].split()[:2] == ["first", "-"]


def test_a_key_that_no_run_has_is_told_from_one_without_points_there(cli: Invoke) -> None:
    unknown = cli("run", "series", "first", "second", "--metric", "rewrd", "--csv", "-")
    outside = cli("run", "series", "first", "--metric", "reward", "--from-step", "9000")

    assert (unknown.exit_code, len(rows(unknown.stdout))) == (0, 0)
    assert "rewrd: no such metric; did you mean 'reward'? the run has Environment/Cumulative Reward" in unknown.stderr
    assert "no such metric" not in outside.stderr


def test_with_common_steps_entries_stand_at_the_same_steps_and_those_without_points_are_left_out(cli: Invoke) -> None:
    options = ("--metric", "reward", "--points", "2", "--common-steps")

    found = rows(cli("run", "series", "first", "second", *options, "--csv", "-").stdout)
    series = as_json(cli("run", "series", "first", "second", *options, "--json"))

    assert [(row["run"], row["step"], row["count"]) for row in found] == [
        ("first", "249", "2"),
        ("first", "400", "2"),
        ("second", "249", "2"),
    ]
    assert [each["steps"] for each in series] == [[249, 400], [249, 400]]
    assert series[1]["counts"] == [2, 0]


def test_csv_and_json_exclude_each_other(cli: Invoke) -> None:
    assert cli("run", "series", "first", "--metric", "reward", "--csv", "-", "--json").exit_code == exits.Exit.USAGE
    assert cli("run", "series", "first").exit_code == exits.Exit.USAGE
    assert cli("run", "series", "nowhere", "--metric", "reward").exit_code == exits.Exit.REFUSED
