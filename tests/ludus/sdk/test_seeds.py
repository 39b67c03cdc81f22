"""Seeds of episodes are repeatable, and no two games share one."""

import math

import pytest

from ludus.sdk.errors import SimulatorError
from ludus.sdk.seeds import EpisodeSeeds, environment_seed, episode_seed
from ludus.sdk.simulation import ResetInfo


def start(*, first: bool = True, **parameters: float) -> ResetInfo:
    return ResetInfo(seed=5, parameters=parameters, number=0, run_id="run-1", first=first)


def test_games_are_seeded_at_their_very_start_only() -> None:
    seeds = EpisodeSeeds()

    seeds.restart(start())
    assert [seeds.next(0), seeds.next(1), seeds.next(0)] == [environment_seed(5, 0), environment_seed(5, 1), None]
    seeds.restart(start(first=False))
    assert seeds.next(0) is None


def test_a_seed_of_ones_own_replaces_the_simulators() -> None:
    seeds = EpisodeSeeds(seed=9)
    seeds.restart(start())

    assert seeds.next(0) == environment_seed(9, 0)


def test_the_first_episode_of_the_first_game_has_the_named_seed_itself() -> None:
    seeds = EpisodeSeeds(parameter="seed")
    seeds.restart(start(first=False, seed=1000.0))

    assert seeds.next(0) == 1000


def test_the_same_value_brings_the_same_episodes_back() -> None:
    seeds, drawn = EpisodeSeeds(seed=9, parameter="seed"), []
    for value in (3.0, 4.0, 3.0):
        seeds.restart(start(seed=value))
        drawn.append([seeds.next(game) for game in (0, 1, 0, 1, 0)])

    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


def test_no_two_episodes_of_a_value_are_alike() -> None:
    seeds = {episode_seed(7, game, episode) for game in range(50) for episode in range(20)}

    assert len(seeds) == 1000


def test_without_the_parameter_episodes_are_seeded_as_usual() -> None:
    seeds = EpisodeSeeds(parameter="seed")
    seeds.restart(start(gravity=2.0))

    assert seeds.next(0) == environment_seed(5, 0)
    assert seeds.options == {"gravity": 2.0}


def test_a_parameter_that_seeds_nothing_is_the_games() -> None:
    seeds = EpisodeSeeds()
    seeds.restart(start(seed=3.0))

    assert seeds.next(0) == environment_seed(5, 0)
    assert seeds.options == {"seed": 3.0}


@pytest.mark.parametrize("value", [-1.0, 0.5, math.inf, math.nan])
def test_what_can_be_no_seed_ends_the_simulator_by_name(value: float) -> None:
    with pytest.raises(SimulatorError, match=r"'seed' is .*, which is no seed") as caught:
        EpisodeSeeds(parameter="seed").restart(start(seed=value))

    assert caught.value.code == "bad_seed"
