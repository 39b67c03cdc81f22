"""Metrics of many runs as a DataFrame."""

import math
import sys

import pandas as pd
import pytest

from ludus.client import Client
from tests.server.app.world import World

REWARD = "Environment/Cumulative Reward"


def test_metrics_of_runs_are_a_frame_with_a_row_for_each_point(world: World, client: Client) -> None:
    ids = []
    for name, shift in (("one", 0.0), ("two", 10.0)):
        trainer = world.claim(world.create(name=name)["id"]).start()
        trainer.measure(REWARD, [1.0 + shift, math.nan, 3.0 + shift])
        trainer.finish()
        ids.append(trainer.run_id)

    frame = client.metrics.frame(ids, ["reward"])

    assert [*frame.columns[:6]] == ["run_id", "behavior", "key", "step", "time", "value"]
    assert frame["run_id"].tolist() == [ids[0]] * 3 + [ids[1]] * 3
    assert frame["key"].unique().tolist() == [REWARD]
    assert frame["step"].tolist() == [100, 200, 300] * 2
    assert frame["value"].isna().tolist() == [False, True, False] * 2
    assert frame["value"].sum() == 28.0
    assert frame["time"].iloc[0] == pd.Timestamp(1000, unit="s", tz="UTC")


def test_a_frame_of_nothing_has_the_same_columns(world: World, client: Client) -> None:
    empty = client.metrics.frame([world.create()["id"]], ["reward"])

    assert len(empty) == 0
    assert [*empty.columns][3:6] == ["step", "time", "value"]


def test_without_pandas_a_frame_says_what_to_install(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        client.metrics.frame(["any"], ["reward"])
