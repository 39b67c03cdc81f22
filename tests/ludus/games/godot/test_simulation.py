"""Games of Godot as simulators: what their messages become, and what the run is told about what they leave out."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.games.godot.game import GodotSettings
from ludus.games.godot.simulation import ENDLESS_DECISIONS, GodotSimulation, make_simulation, spelled
from ludus.protocol.batches import ActionBatch, BehaviorBatch, Outcome
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.errors import GameLost, GameMistake
from ludus.sdk.simulation import ResetInfo
from ludus.sdk.steps import Actions, StepBuilder
from tests.ludus.games.godot.peer import INFO, Answer, Script, ScriptedGame, at, frame, old, plain
from tests.ports import free_port

POLICY = "shared_policy"


class Played:
    """A scripted game and its simulation, in the place of the SDK."""

    def __init__(self, script: Script = plain, call: Mapping[str, str] | None = None, **options: Any) -> None:
        port = free_port()
        self.game = ScriptedGame(port, script)
        self.simulation = GodotSimulation(None, GodotSettings(base_port=port, call=call or {}), **options)
        self.builder = StepBuilder({}, {})

    def __enter__(self) -> Self:
        self.game.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.simulation.close()
        self.game.__exit__(*error)

    def reset(self, **parameters: float) -> list[BehaviorBatch]:
        self._layouts = {spec.name: BehaviorLayout(spec) for spec in self.simulation.behaviors}
        self.builder = StepBuilder(self._layouts, {})
        self.simulation.reset(self.builder, ResetInfo(0, parameters, 0, "run", True))
        return self.builder.batches()

    def step(self, **parameters: float) -> list[BehaviorBatch]:
        self.builder = StepBuilder(self._layouts, {})
        self.builder.parameters.change(parameters, {})
        batches = []
        for spec in self.simulation.behaviors:
            agents = np.array([i for i, name in enumerate(self.names()) if name == spec.name], np.int32)
            continuous = np.full((len(agents), spec.actions.continuous_size), 0.5, np.float32)
            discrete = np.ones((len(agents), len(spec.actions.discrete_branches)), np.int32)
            batches.append(ActionBatch(spec.name, agents, continuous, discrete))
        self.simulation.step(self.builder, Actions(batches))
        return self.builder.batches()

    def names(self) -> list[str]:
        by_agent = {agent: name for name, agents in self.simulation._agents.items() for agent in agents}
        return [by_agent[agent] for agent in sorted(by_agent)]

    @property
    def codes(self) -> list[str]:
        return [warning.code for warning in self.builder.warnings]


def answering(change: Callable[[dict[str, Any], int], object]) -> Script:
    """Change what a plain game answers to actions."""

    def script(message: Mapping[str, Any], step: int) -> Answer:
        answer = plain(message, step)
        if message["type"] == "action":
            assert isinstance(answer, dict)
            change(answer, step)
        return answer

    return script


@pytest.mark.parametrize("script", [plain, old], ids=["0.7", "0.3"])
def test_episodes_end_and_begin_in_one_message_with_the_last_observation_that_was_acted_on(script: Script) -> None:
    with Played(script) as played:
        [(name, asked, ended)] = played.reset()
        assert (name, ended) == (POLICY, None)
        assert asked is not None
        assert asked.agent_ids.tolist() == [0, 1]
        assert asked.observations[0].tolist() == [[0, 0, 0.5, 0, 0], [0, 1, 0.5, 0, 0]]
        for step in range(1, 5):
            [(_, asked, ended)] = played.step()
            assert ended is None
            assert asked is not None
            assert asked.rewards.tolist() == [2.0, -4.5]
            assert asked.observations[0][:, 0].tolist() == [step, step]
        [(_, asked, ended)] = played.step()
        assert asked is not None
        assert ended is not None
        assert ended.agent_ids.tolist() == [0]
        assert ended.rewards.tolist() == [2.0]
        assert ended.truncated.tolist() == [False]
        assert ended.observations[0].tolist() == [[4, 0, 0.5, 0, 0]], "not the first one of the next episode"
        assert asked.rewards.tolist() == [0.0, -4.5], "the reward belongs to the episode that ended"
        assert asked.observations[0][:, 0].tolist() == [5, 5]
        assert played.codes == ["no_terminal_observation"]
        for _ in range(5):
            [(_, _, ended)] = played.step()
        assert ended is not None
        assert played.codes == [], "it is said once"
    sent = played.game.received
    assert [message["type"] for message in sent] == ["handshake", "env_info", "reset", *["action"] * 10, "close"]
    assert sent[3]["action"] == [{"move": [0.5], "jump": 1}] * 2


def test_what_a_game_tells_of_an_end_is_taken() -> None:
    def ends(answer: dict[str, Any], step: int) -> None:
        answer["done"] = [True, True]
        answer["info"] = [
            {"terminal_observation": {"obs": [9, 9, 9, 9, 9]}, "TimeLimit.truncated": True, "outcome": "win"},
            {"is_success": True, "coins": 3, "name": "x", "bad": float("nan"), "outcome": "loss"},
        ]

    with Played(answering(ends)) as played:
        played.reset()
        [(_, _, ended)] = played.step()

        assert ended is not None
        assert ended.truncated.tolist() == [True, False]
        assert ended.observations[0].tolist() == [[9, 9, 9, 9, 9], [0, 1, 0.5, 0, 0]]
        assert ended.outcomes is not None
        assert ended.outcomes.tolist() == [Outcome.WIN, Outcome.LOSS]
        assert {stat.key: stat.value for stat in played.builder.stats} == {
            "Environment/Success": 1.0,
            "Environment/coins": 3.0,
        }
        assert played.codes == ["no_terminal_observation"], "the second agent's end is not told"


def test_a_game_that_tells_its_last_observations_is_not_warned() -> None:
    def ends(answer: dict[str, Any], step: int) -> None:
        answer["done"] = [True, False]
        answer["info"] = [{"terminal_observation": {"obs": [9, 9, 9, 9, 9]}}, {}]

    with Played(answering(ends)) as played:
        played.reset()
        played.step()
        assert played.codes == []


def test_masks_of_the_infos_are_those_of_the_agents() -> None:
    def forbids(answer: dict[str, Any], step: int) -> None:
        answer["info"] = [{"action_mask": [1, 0, 1]}, {}]

    with Played(answering(forbids)) as played:
        played.reset()
        [(_, asked, _)] = played.step()
        assert asked is not None
        assert asked.action_masks is not None
        assert asked.action_masks.tolist() == [[1, 0, 1], [1, 1, 1]]


def test_several_policies_are_behaviors_of_their_own_with_their_own_spaces() -> None:
    player = {"move": {"size": 2, "action_type": "continuous"}}
    info = {
        **INFO,
        "action_space": [player, INFO["action_space"][1]],  # type: ignore[index]  # a list
        "agent_policy_names": ["player", "platform"],
    }

    def script(message: Mapping[str, Any], step: int) -> Answer:
        return plain(message, step, info=info)

    with Played(script) as played:
        played.reset()
        assert [spec.name for spec in played.simulation.behaviors] == ["player?team=0", "platform?team=1"]
        batches = played.step()
        assert [batch.behavior for batch in batches] == ["player?team=0", "platform?team=1"]
    assert played.game.received[-2]["action"] == [{"move": [0.5, 0.5]}, {"move": [0.5], "jump": 1}]


def test_agents_of_one_policy_are_alike() -> None:
    info = {
        **INFO,
        "observation_space": [{"obs": {"size": [5], "space": "box"}}, {"obs": {"size": [6], "space": "box"}}],
    }
    says = "agents 0 and 1 have one policy_name, 'shared_policy', and differ"
    with (
        Played(lambda message, step: plain(message, step, info=info)) as played,
        pytest.raises(GameMistake, match=says),
    ):
        played.reset()


def test_one_behavior_of_two_policies_has_two_teams_for_self_play() -> None:
    info = {**INFO, "agent_policy_names": ["red", "blue"]}
    with Played(lambda message, step: plain(message, step, info=info), behavior="Soccer") as played:
        played.reset()
        assert [spec.name for spec in played.simulation.behaviors] == ["Soccer?team=0", "Soccer?team=1"]


def test_a_run_without_the_end_of_an_episode_is_told_once() -> None:
    with Played(lambda message, step: plain(message, step, every=10**9)) as played:
        played.reset()
        played.simulation._decisions = ENDLESS_DECISIONS - 4
        played.step()
        assert played.codes == []
        played.step()
        assert played.codes == ["no_episode_ended"]
        assert "set `done = true`" in played.builder.warnings[0].sentence
        played.step()
        assert played.codes == []


def test_parameters_reach_the_agents_by_calls_when_they_change() -> None:
    def returns(message: Mapping[str, Any], step: int) -> Answer:
        return {"type": "call", "returns": [True, None]} if message["type"] == "call" else plain(message, step)

    with Played(returns, call={"difficulty": "set_difficulty"}) as played:
        played.reset(difficulty=1.0, other=3.0)
        played.step(difficulty=1.0)
        played.step(difficulty=2.5)
        assert played.codes == []
        played.reset(difficulty=2.5)
    called = [(message["type"], message.get("method")) for message in played.game.received[2:-1]]
    assert called == [
        ("call", "set_difficulty_1"),
        ("reset", None),
        ("action", None),
        ("call", "set_difficulty_2_5"),
        ("action", None),
        ("reset", None),
    ]


def test_a_call_that_nobody_answers_and_parameters_without_calls_are_told() -> None:
    with Played(call={"size": "set_size"}) as played:
        played.reset(size=1.0)
        assert played.codes == ["call_unanswered"]
        assert "set_size_1" in played.builder.warnings[0].sentence
    with Played() as played:
        played.reset(size=1.0)
        assert played.codes == ["parameters_unused"]
        assert "--call NAME=METHOD" in played.builder.warnings[0].sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (0.5, "0_5"), (-1.0, "minus_1"), (-0.25, "minus_0_25"), (1e-7, "1eminus_07"), (1e20, "1e20")],
)
def test_values_are_spelled_as_ends_of_a_method_s_name(value: float, text: str) -> None:
    assert spelled(value) == text
    assert f"set_{text}".isidentifier()


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (
            {"obs": [{"obs": [0, 0, float("nan"), 0, 0]}, {"obs": [0] * 5}]},
            GameLost,
            "agent 0: its observation 'obs' has nan",
        ),
        ({"reward": [0, float("inf")]}, GameLost, "agent 1: its reward is inf"),
        ({"reward": [0, "1"]}, GameMistake, "agent 1: its reward is '1'"),
        ({"reward": [0, None]}, GameMistake, "agent 1: its reward is None"),
        ({"reward": [0, 10**400]}, GameMistake, "agent 1: its reward"),
        ({"reward": [0]}, GameLost, "'reward' is a list of 1; .* 2 agents"),
        ({"done": [False, 2]}, GameMistake, "agent 1: done is 2"),
        ({"done": None}, GameLost, "'done' is None"),
        ({"obs": [{}, {}]}, GameMistake, "agent 0: its observation has no 'obs'"),
        ({"info": {}}, GameLost, "'info' is"),
        ({"info": [{"action_mask": [0, 0, 0]}, {}]}, GameMistake, "agent 0: the action mask forbids every choice"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(change: dict[str, Any], kind: type[Exception], says: str) -> None:
    with Played(answering(lambda answer, step: answer.update(change))) as played:
        played.reset()
        with pytest.raises(kind, match=says):
            played.step()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "game_quit"),
        (frame(b"null"), "game_quit"),
        (frame(b"hello"), "no_json"),
        ({"type": "reset"}, "no_message"),
    ],
)
def test_a_game_of_the_editor_that_stops_or_talks_nonsense_is_lost(answer: Answer, code: str) -> None:
    with Played(at(2, answer)) as played:
        played.reset()
        played.step()
        played.step()
        with pytest.raises(GameLost) as lost:
            played.step()
    assert lost.value.code == code
    if code == "game_quit":
        assert "press Play to go on" in str(lost.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(["obs", "move", "x"]), children),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("obs", "reward", "done", "info", "type"), JSON)))
def test_whatever_a_game_answers_is_experience_or_a_named_mistake(change: dict[str, Any]) -> None:
    with Played(answering(lambda answer, step: answer.update(change))) as played:
        played.reset()
        said, asked = "", None
        try:
            [(_, asked, _)] = played.step()
        except (GameLost, GameMistake) as error:
            said = str(error)
        assert said or (asked is not None and np.isfinite(asked.observations[0]).all())
        assert said or (asked is not None and np.isfinite(asked.rewards).all())


def test_one_process_has_one_game_and_policies_name_its_behaviors() -> None:
    with pytest.raises(GameNotMade, match="leave out --envs"):
        make_simulation("editor", 2)
    with pytest.raises(GameNotMade, match="leave out --separate"):
        make_simulation("editor", separate=True)
    with pytest.raises(GameNotMade, match="there is no build nowhere/game"):
        make_simulation("nowhere/game")
