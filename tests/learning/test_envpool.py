"""Atari's Pong, in pictures, learns with the preset `pong` where EnvPool's wheel runs: an hour on a CPU.

make learn ARGS='-k pong'
"""

from pathlib import Path

import pytest
import yaml

from benchmarks.alone import train
from server.config.presets import read_preset

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.hours, pytest.mark.timeout(0)]

BAR = 15.0
"""Mean return of the episodes that ended in the last summary period; -21 is the worst, 21 the best."""


def test_pong_is_won_from_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("envpool")

    outcome = train(yaml.safe_load(read_preset("pong")), tmp_path / "run", "envpool:Pong-v5", 32, seconds=12 * 3600.0)

    curve = outcome.series["Environment/Cumulative Reward"]
    assert outcome.outcome == "succeeded"
    assert curve[0][1] < -18.0, "by chance"
    assert curve[-1][1] >= BAR, curve
