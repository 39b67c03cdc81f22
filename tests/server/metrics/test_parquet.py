"""The Parquet file of a run, as a client downloads it."""

import math
from pathlib import Path

import pyarrow.parquet as pq

from ludus.client import Client
from tests.server.app.world import World
from tests.server.metrics.test_jobs import REWARD, ended


def test_the_parquet_file_has_a_row_for_each_point_of_any_run(world: World, tmp_path: Path) -> None:
    run_id = ended(world, "long", points=20).run_id
    live = world.claim(world.create(name="live")["id"]).start()
    live.measure(REWARD, [1.0, math.nan], behavior="")

    with Client(world.server) as client:
        table = pq.read_table(client.metrics.download(run_id, tmp_path / "ended.parquet"))
        tail = pq.read_table(client.metrics.download("live", tmp_path / "live.parquet")).to_pydict()
        empty = pq.read_table(client.metrics.download(world.create(name="queued")["id"], tmp_path / "none.parquet"))

    assert table.schema.names == ["run_id", "attempt", "behavior", "key", "step", "time", "value"]
    assert (table.num_rows, empty.num_rows) == (39, 0)
    assert table["key"].to_pylist() == [REWARD] * 20 + ["Policy/Entropy"] * 19
    assert table["step"].to_pylist()[:20] == list(range(100, 2100, 100))
    assert table["time"][1].as_py().timestamp() == 1001.0
    assert (tail["run_id"], tail["attempt"], tail["behavior"]) == ([live.run_id] * 2, [1, 1], ["", ""])
    assert tail["value"][0] == 1.0
    assert math.isnan(tail["value"][1])
