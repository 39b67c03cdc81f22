"""Each mistake of a game is one sentence, whatever library the game is of: the value, the place, and what to give.

And what is unambiguous is no mistake: numbers of numpy, arrays of one element, lists.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from ludus.adapters.gymnasium import EnvironmentSimulation
from ludus.adapters.pettingzoo import PettingZooSimulation
from ludus.adapters.vector import VectorSimulation
from ludus.protocol.batches import ActionBatch
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder
from ludus.sdk.errors import GameMistake
from tests.ludus.adapters.table import Table, start

BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACE = spaces.Dict(a=BOX, b=spaces.Discrete(3, start=1))
GOOD: Mapping[str, Any] = {
    "observation": {"a": np.zeros(2, np.float32), "b": 1},
    "reward": 0.0,
    "terminated": False,
    "truncated": False,
    "info": {},
}


class Alone(gymnasium.Env[Any, Any]):
    """Gives `told` from its second observation on."""

    observation_space, action_space = SPACE, spaces.Discrete(3)

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = {**GOOD, **told}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return GOOD["observation"], {}

    def step(self, action: Any) -> Any:
        return tuple(self.told.values())


class Two(VectorEnv[Any, Any, Any]):
    """Two of them, of which the second one is wrong."""

    single_observation_space, single_action_space, num_envs = SPACE, spaces.Discrete(3), 2
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  Gymnasium's

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = {**GOOD, **told}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return self.beside(GOOD["observation"]), {}

    def step(self, actions: Any) -> Any:
        told = dict(self.told)
        info, observation = told.pop("info"), told.pop("observation")
        if isinstance(info, dict) and "action_mask" in info:
            info = {"action_mask": beside([1, 1, 1], info["action_mask"])}
        return self.beside(observation), *([GOOD[name], value] for name, value in told.items()), info

    def beside(self, wrong: Any) -> Any:
        good = GOOD["observation"]
        return {key: beside(good[key], wrong[key]) for key in wrong} if isinstance(wrong, dict) else wrong


def beside(good: Any, wrong: Any) -> Any:
    """Return two values as a batch; where no array has both, the second one twice."""
    try:
        both = good if np.shape(good) == np.shape(wrong) else wrong
        return np.array([both, wrong])
    except ValueError:
        return [wrong, wrong]


class Players:
    """Two players, of which the second one is told wrong."""

    possible_agents = ["one", "two"]  # noqa: RUF012  PettingZoo's

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = {**GOOD, **told}

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)


class Duel(Players, AECEnv[Any, Any, Any]):
    """They play in turn."""

    metadata = {"name": "duel"}  # noqa: RUF012  PettingZoo's

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = "one"
        self._told(GOOD)

    def step(self, action: Any) -> None:
        self.agent_selection = "two"
        self._told(self.told)

    def _told(self, told: Mapping[str, Any]) -> None:
        self.now = told
        self._cumulative_rewards = {"one": 0.0, "two": told["reward"]}
        self.terminations = {"one": False, "two": told["terminated"]}
        self.truncations = {"one": False, "two": told["truncated"]}
        self.infos = {"one": {}, "two": told["info"]}
        self.rewards = {"one": 0.0, "two": 0.0}

    def observe(self, agent: str) -> Any:
        return self.now["observation"]


class Race(Players, ParallelEnv[Any, Any, Any]):
    """They play at once."""

    metadata = {"name": "race"}  # noqa: RUF012  PettingZoo's

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, GOOD["observation"]), {}

    def step(self, actions: Any) -> Any:
        return tuple({"one": GOOD[name], "two": value} for name, value in self.told.items())


class Native(Simulation):
    """The same by hand: its mistakes are in what it says."""

    behaviors = (BehaviorSpec("Native", (ObservationSpec((2,), "a"), ObservationSpec((1,), "b")), ActionSpec(0, (3,))),)

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = {**GOOD, **told}

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self._ask(builder, GOOD)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        self._ask(builder, self.told)

    def _ask(self, builder: StepBuilder, told: Mapping[str, Any]) -> None:
        seen = told["observation"]
        parts = [seen["a"], [seen["b"]]] if isinstance(seen, dict) and len(seen) == 2 else seen
        mask = told["info"]["action_mask"] if told["info"] else None
        if told["truncated"] is not False:
            builder.end_episode(0, parts, told["reward"], truncated=told["truncated"])
        else:
            builder.request_decision(0, parts, told["reward"], mask=mask)


def turns(simulation: Simulation, count: int = 1) -> None:
    """Play so many turns, choosing 0."""
    table = Table(simulation)
    told = table.reset(start())
    for _ in range(count):
        (batch,) = told.values()
        assert batch.decisions is not None
        size = len(batch.decisions.agent_ids)
        none = np.zeros((size, 0), np.float32)
        told = table.act(ActionBatch(batch.behavior, None, none, np.zeros((size, 1), np.int32)))
        if not told or any(each.decisions is None for each in told.values()):
            return


def pettingzoo(game: Callable[[Any], Any]) -> Callable[[Any], Simulation]:
    from ludus.adapters.assignment import Lineup  # noqa: PLC0415

    return lambda told: PettingZooSimulation([game(told)], "game", Lineup(teams=(0,)))


ADAPTERS: Mapping[str, Callable[[Mapping[str, Any]], Simulation]] = {
    "gymnasium": lambda told: EnvironmentSimulation([Alone({}), Alone(told)], "game"),
    "vector": lambda told: VectorSimulation(Two(told), "game"),
    "aec": pettingzoo(Duel),
    "parallel": pettingzoo(Race),
    "native": Native,
}
PLACES = {
    "gymnasium": ("Alone", "test_values.py", "environment 1 of 2"),
    "vector": ("Two", "test_values.py"),
    "aec": ("Duel", "test_values.py", "player two"),
    "parallel": ("Race", "test_values.py", "player two"),
    "native": ("agent 0 of 'Native'",),
}


def seen(**parts: Any) -> dict[str, Any]:
    return {"observation": {**GOOD["observation"], **parts}}


MISTAKES: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no observation": ({"observation": None}, ("observation", "None")),
    "the space": ({"observation": SPACE}, ("observation", "a space and no value")),
    "text": (seen(a=["left", "right"]), ("observation", "give an array")),
    "a ragged list": (seen(a=[[1.0], [1.0, 2.0]]), ("observation", "give an array")),
    "another shape": (seen(a=np.zeros(3)), ("observation", "has shape", "its spec says")),
    "complex": (seen(a=np.zeros(2, np.complex64)), ("observation", "complex64")),
    "objects": (seen(a=np.array([object(), object()])), ("observation", "object")),
    "nan": (seen(a=np.array([0.0, np.nan])), ("observation", "nan at [1]", "finite")),
    "beyond float32": (seen(a=np.array([0.0, 1e39])), ("observation", "1e+39 at [1]", "float32")),
    "a missing part": ({"observation": {"a": np.zeros(2)}}, ("observation", "'b'")),
    "no reward": ({"reward": None}, ("reward", "None", "give one number")),
    "reward of text": ({"reward": "1.0"}, ("reward", "1.0", "give")),
    "two rewards": ({"reward": np.zeros(2)}, ("reward", "give")),
    "a reward of nan": ({"reward": float("nan")}, ("reward", "nan", "finite")),
    "a reward beyond float32": ({"reward": 1e39}, ("reward", "1e+39", "float32")),
    "a complex reward": ({"reward": 1j}, ("reward", "give")),
    "no end": ({"terminated": None}, ("termin", "None", "True or False")),
    "an end of text": ({"terminated": "no"}, ("termin", "no", "True or False")),
    "no cut": ({"truncated": None}, ("trunc", "None", "True or False")),
    "no info": ({"info": None}, ("info", "None", "dictionary")),
    "an info of text": ({"info": "fine"}, ("info", "fine", "dictionary")),
    "a short mask": ({"info": {"action_mask": [1, 0]}}, ("action mask", "2 entries, not 3")),
    "a mask of shares": ({"info": {"action_mask": [0.5, 1, 0]}}, ("action mask", "0.5", "1 for each")),
    "a mask of text": ({"info": {"action_mask": ["a", "b", "c"]}}, ("action mask", "1 for each")),
    "a mask of nothing": ({"info": {"action_mask": [0, 0, 0]}}, ("action mask", "forbids every choice")),
    "above the choices": (seen(b=4), ("observation", "'b'", "4", "1 to 3")),
    "below the choices": (seen(b=0), ("observation", "'b'", "0", "1 to 3")),
    "between the choices": (seen(b=1.5), ("observation", "'b'", "1.5", "1 to 3")),
}
NO_MISTAKE_THERE = {
    ("native", name)
    for name in (
        *("the space", "no end", "an end of text", "no info", "an info of text", "a missing part"),
        *("above the choices", "below the choices", "between the choices"),
    )
}
"""A hand-written game has a spec in place of a space: no infos, no Discrete, and ends by calling `end_episode`."""


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_mistake_is_one_sentence_with_value_place_and_remedy(adapter: str, mistake: str) -> None:
    if (adapter, mistake) in NO_MISTAKE_THERE:
        return
    told, words = MISTAKES[mistake]
    simulation = ADAPTERS[adapter](told)

    with pytest.raises(GameMistake) as raised:
        turns(simulation)

    sentence = str(raised.value)
    assert "\n" not in sentence
    assert raised.value.code == "bad_game"
    for word in (*words, *PLACES[adapter]):
        assert word in sentence, (word, sentence)


FINE: Mapping[str, dict[str, Any]] = {
    "a numpy reward": {"reward": np.float16(0.5)},
    "an array of one reward": {"reward": np.array([0.5])},
    "a reward of no dimension": {"reward": np.array(0.5)},
    "a bool as a reward": {"reward": True},
    "a whole reward": {"reward": np.int64(1)},
    "numpy flags": {"terminated": np.bool_(False), "truncated": np.array(False)},
    "whole flags": {"terminated": 0, "truncated": np.int8(0)},
    "a list": seen(a=[0.5, 1]),
    "a row": seen(a=np.zeros((1, 2))),
    "float64": seen(a=np.zeros(2)),
    "whole numbers": seen(a=np.array([1, 0])),
    "a choice as an array": seen(b=np.array([2])),
    "a choice as a float": seen(b=2.0),
    "a mask of bools": {"info": {"action_mask": np.array([True, False, True])}},
}


@pytest.mark.parametrize("fine", FINE)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_unambiguous_is_played(adapter: str, fine: str) -> None:
    turns(ADAPTERS[adapter](FINE[fine]), 3)
