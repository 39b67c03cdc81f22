"""Games of EnvPool learn with their presets where its wheel runs: Atari's Pong from pictures, an hour on a CPU, and
DeepMind Control's walker and cheetah within 100,000 frames, each hours.

make learn ARGS='-k "pong or frames"'
"""

from pathlib import Path

import pytest
import yaml

from benchmarks.alone import train
from server.config.presets import read_preset

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.hours, pytest.mark.timeout(0)]

BAR = 15.0
"""Mean return of the episodes that ended in a summary period; -21 is the worst, 21 the best."""
CONTROL = {"WalkerWalk": 450.0, "CheetahRun": 225.0}
"""Mean return of the episodes in the last summary period. EnvPool rewards the last of a decision's two frames alone:
these are 900 and 450 in DeepMind Control's count of both, which SAC reaches with SimBa's network (Lee et al. 2024: 951
and 559 on average over ten seeds) and misses without (783 and 329)."""


def test_pong_is_won_from_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("envpool")

    preset = yaml.safe_load(read_preset("pong"))

    outcome = train(preset, tmp_path / "run", "envpool:Pong-v5", 32, until=BAR, seconds=12 * 3600.0)

    curve = outcome.series["Environment/Cumulative Reward"]
    assert curve[0][1] < -18.0, "by chance"
    assert outcome.solved_step, curve


@pytest.mark.parametrize("game", CONTROL)
def test_control_is_learned_within_100_000_frames(game: str, tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    behavior = yaml.safe_load(read_preset("walker_walk"))["behaviors"]["WalkerWalk"]
    arguments = ["--env-arg", "frame_skip=2", "--env-arg", "max_episode_steps=500"]

    outcome = train(
        {"behaviors": {game: behavior}},
        tmp_path / "run",
        f"envpool:{game}-v1",
        1,
        seconds=12 * 3600.0,
        arguments=arguments,
    )

    curve = outcome.series["Environment/Cumulative Reward"]
    assert outcome.outcome == "succeeded"
    assert curve[-1][1] >= CONTROL[game], curve
