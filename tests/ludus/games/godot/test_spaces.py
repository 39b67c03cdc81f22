"""What Godot's agents see and do: every form that plug-ins send, and every one that cannot be understood."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.games.godot.spaces import ActionKey, ObservationKey, Spaces, behavior_names, read_info
from ludus.protocol.spec import ActionSpec, ObservationSpec
from ludus.sdk.errors import GameLost, GameMistake
from tests.ludus.games.godot.peer import INFO, OLD_INFO

MIXED = Spaces(
    (ObservationKey("obs", (2,)),),
    (
        ActionKey("steer", 2, is_discrete=False),
        ActionKey("jump", 3, is_discrete=True),
        ActionKey("a", 1, is_discrete=False),
    ),
)
VALUES = (
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
)


def info(**changes: Any) -> dict[str, Any]:
    return {**INFO, **changes}


def of_one(space: object, name: str = "obs") -> Spaces:
    return read_info(
        info(
            n_agents=1,
            observation_space=[{name: space}],
            action_space=INFO["action_space"][:1],
            agent_policy_names=["a"],
        )
    ).spaces[0]  # type: ignore[index]  # a list


def test_the_newest_and_the_oldest_plug_in_tell_the_same() -> None:
    new, old = read_info(INFO), read_info(OLD_INFO)

    assert new.spaces == old.spaces
    assert old.policies == ("shared_policy", "shared_policy")
    spec = new.spaces[0].behavior("shared_policy")
    assert spec.observations == (ObservationSpec((5,), "obs"),)
    assert spec.actions == ActionSpec(1, (3,))
    assert json.loads(spec.game_layout) == {
        "engine": "godot",
        "observations": ["obs"],
        "choices": [],
        "actions": [["move", 1, False], ["jump", 3, True]],
    }


def test_several_keys_keep_the_order_of_the_game() -> None:
    space = {"z": {"size": [2], "space": "box"}, "a": {"size": [1], "space": "box"}}
    keys = read_info(info(observation_space=[space, space])).spaces[0].observations

    assert [key.name for key in keys] == ["z", "a"]


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("obs", [5], (5,)),
        ("obs", [5.0], (5,)),
        ("grid", [3, 4], (12,)),
        ("camera_2d", [3, 36, 48], (3, 36, 48)),
        ("camera_2d", [4, 36.0, 48.0], (4, 36, 48)),
        ("camera_2d", [48, 36, 4], (4, 36, 48)),
        ("position_2d", [2], (2,)),
        ("cube", [2, 2, 2], (8,)),
    ],
)
def test_sizes_become_shapes(name: str, size: list[float], shape: tuple[int, ...]) -> None:
    assert of_one({"size": size, "space": "box"}, name).observations[0].shape == shape


def test_a_picture_is_bytes_of_rows_of_pixels() -> None:
    key = ObservationKey("camera_2d", (3, 2, 2))
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    picture = key.read([pixels.tobytes().hex()], [0])

    assert picture.dtype == np.uint8
    assert picture[0, :, 1, 0].tolist() == pixels[1, 0].tolist()
    assert key.spec == ObservationSpec((3, 2, 2), "camera_2d", "uint8")


def test_a_choice_is_a_column_for_each() -> None:
    key = of_one({"size": 3, "space": "discrete"}).observations[0]

    assert key.read([2, 1], [0, 1]).tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("value", [[0.5, 1], [[0.5], [1]], [0.5, True]])
def test_numbers_are_read_whatever_lists_they_stand_in(value: object) -> None:
    assert MIXED.read([{"obs": value, "more": 3}], [0])[0].tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("(1, 2)", r"agent 7: its observation 'obs' is '\(1, 2\)'.*a Vector2 or Vector3 becomes text"),
        (["(1, 2)", 3], "agent 7: its observation 'obs' .*a Vector2 or Vector3 becomes text"),
        ([1], r"agent 7: its observation 'obs' has shape \(1,\), its spec says \(2,\)"),
        ([1, 2, 3], r"has shape \(3,\)"),
        (None, "is None"),
        ({"x": 1}, "agent 7: its observation 'obs' is"),
        ([[1, 2], 3], "agent 7: its observation 'obs' is"),
        ([10**400, 1], "agent 7: its observation 'obs'"),
    ],
)
def test_an_observation_that_is_no_array_of_numbers_is_named(value: object, says: str) -> None:
    with pytest.raises(GameMistake, match=says):
        MIXED.read([{"obs": [0, 0]}, {"obs": value}], [3, 7])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_number_that_is_not_finite_is_named_and_the_game_may_be_started_again(value: float) -> None:
    with pytest.raises(GameLost, match=r"agent 7: its observation 'obs' has (nan|inf|-inf|1e\+39) at \[1\]") as lost:
        MIXED.read([{"obs": [0, 0]}, {"obs": [0, value]}], [3, 7])
    assert lost.value.code == "not_finite"


@pytest.mark.parametrize(
    ("observation", "says"), [({"Obs": [0, 0]}, "has no 'obs', .* only 'Obs'"), ([0, 0], "give a dictionary")]
)
def test_an_observation_without_its_entries_is_named(observation: object, says: str) -> None:
    with pytest.raises(GameMistake, match=rf"agent 3: .*{says}"):
        MIXED.read([observation], [3])


@pytest.mark.parametrize(
    ("value", "says"),
    [("0g", "hexadecimal"), ([0] * 12, "hexadecimal"), ("00" * 11, "has 11 bytes; .* 2 x 2 .* has 12")],
)
def test_a_picture_of_another_kind_is_named(value: object, says: str) -> None:
    with pytest.raises(GameMistake, match=rf"agent 0: its observation 'camera_2d' .*{says}"):
        ObservationKey("camera_2d", (3, 2, 2)).read([value], [0])


@pytest.mark.parametrize("value", [3, -1, 0.5, None, "1"])
def test_a_choice_that_there_is_not_is_named(value: object) -> None:
    with pytest.raises(GameMistake, match="agent 0: its observation 'kind'"):
        ObservationKey("kind", (3,), choices=True).read([value], [0])


def test_actions_go_to_their_keys_in_the_order_of_the_game() -> None:
    action = MIXED.action(np.array([0.5, -1.0, 0.25], np.float32), np.array([2], np.int32))

    assert action == {"steer": [0.5, -1.0], "jump": 2, "a": [0.25]}
    assert list(action) == ["steer", "jump", "a"]
    assert json.loads(json.dumps(action)) == action


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_agents": 0}, "no agent to train: .*control mode"),
        ({"n_agents": -1}, "n_agents is -1"),
        ({"n_agents": float("nan")}, "n_agents is nan"),
        ({"n_agents": float("inf")}, "n_agents is inf"),
        ({"n_agents": 1.5}, "n_agents is 1.5"),
        ({"n_agents": None}, "n_agents is None"),
        ({"n_agents": 3}, "observation_space is .* each of 3 agents"),
        ({"observation_space": None}, "observation_space is None"),
        ({"observation_space": {}}, "observation space is empty"),
        ({"observation_space": {"obs": [5]}}, "the observation space of 'obs' is"),
        ({"observation_space": {"obs": {"size": 5, "space": "box"}}}, "write {'size'"),
        ({"observation_space": {"obs": {"size": [], "space": "box"}}}, "write {'size'"),
        ({"observation_space": {"obs": {"size": [5], "space": "bag"}}}, "write {'size'"),
        ({"observation_space": {"obs": {"size": [0], "space": "box"}}}, "has size 0"),
        ({"observation_space": {"obs": {"size": [2.5], "space": "box"}}}, "has size 2.5"),
        ({"observation_space": {"obs": {"size": [1 << 20, 1 << 20], "space": "box"}}}, "at most 16777216"),
        ({"observation_space": {"eye_2d": {"size": [36, 36, 36], "space": "box"}}}, "1, 3 or 4 channels"),
        ({"action_space": {}}, "action space is empty"),
        ({"action_space": {"move": {"size": 2, "action_type": "analog"}}}, "'continuous' or 'discrete'"),
        ({"action_space": {"move": {"size": 0, "action_type": "discrete"}}}, "has size 0"),
        ({"action_space": {"move": {"action_type": "discrete"}}}, "it needs a 'size'"),
        ({"agent_policy_names": ["a"]}, "agent_policy_names are .* 2 names"),
        ({"agent_policy_names": ["a", 3]}, "agent 1: its policy_name is 3"),
        ({"agent_policy_names": ["a", ""]}, "agent 1: its policy_name is ''"),
    ],
)
def test_what_a_game_tells_wrongly_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GameMistake, match=says):
        read_info(info(**changes))


@given(st.fixed_dictionaries({}, optional={name: st.recursive(*VALUES, max_leaves=12) for name in INFO}))
def test_whatever_a_game_tells_is_read_or_named(changes: dict[str, Any]) -> None:
    try:
        found = read_info(info(**changes))
    except GameMistake:
        return
    assert len(found.spaces) == len(found.policies) == info(**changes)["n_agents"]


@given(st.recursive(*VALUES, max_leaves=8))
def test_whatever_an_agent_observes_is_read_or_named(value: object) -> None:
    keys = (
        ObservationKey("obs", (2,)),
        ObservationKey("eye_2d", (1, 2, 2)),
        ObservationKey("kind", (3,), choices=True),
    )
    for key in keys:
        said = ""
        try:
            read = key.read([value], [0])
        except (GameMistake, GameLost) as error:
            said = str(error)
        assert key.name in said or (read.shape == (1, *key.shape) and np.isfinite(read).all())


@pytest.mark.parametrize(
    ("policies", "behavior", "teams", "names"),
    [
        (["a", "a"], None, (), ["a", "a"]),
        (["red", "blue", "red"], None, (), ["red?team=0", "blue?team=1", "red?team=0"]),
        (["red", "blue"], "Soccer", (), ["Soccer?team=0", "Soccer?team=1"]),
        (["a", "a"], "Soccer", (0, 1), ["Soccer?team=0", "Soccer?team=1"]),
        (["a", "a"], None, (3,), ["a?team=3", "a?team=3"]),
        (["Soccer?team=1", "Soccer?team=0"], None, (), ["Soccer?team=1", "Soccer?team=0"]),
    ],
)
def test_policies_and_teams_name_behaviors(
    policies: list[str], behavior: str | None, teams: tuple[int, ...], names: list[str]
) -> None:
    assert list(behavior_names(policies, behavior, teams)) == names


def test_teams_are_for_each_agent_or_for_all() -> None:
    with pytest.raises(GameMistake, match="--teams names 2 teams, and the game has 3 agents"):
        behavior_names(["a", "a", "a"], None, (0, 1))
