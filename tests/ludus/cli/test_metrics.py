"""`ludus run metrics`: newest values, and a Parquet file of all points."""

from pathlib import Path

import pyarrow.parquet as pq

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
