"""No dummy step of a vector environment becomes experience, and its last observations arrive, however it autoresets.

The environment counts: observation = (episode, tick), reward = tick, and it keeps its own list of the steps that were
played, with which the experience that arrives is compared.
"""

import logging
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.adapters.vector import MODES, VectorSimulation, make_simulation
from ludus.protocol.batches import ActionBatch, BehaviorBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import Actions, ResetInfo
from ludus.sdk import values as sdk_values
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import episode_seed
from ludus.sdk.session import Session
from tests.ludus.adapters.test_gymnasium import Counting

START = ResetInfo(seed=5, parameters={}, number=0, run_id="run-1", first=True)
BOX = spaces.Box(-1, 1000, (2,), np.float32)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Tuple((BOX,))})


@pytest.fixture(autouse=True)
def _warnings_again() -> None:
    """Each test has the warnings that come once in a process."""
    sdk_values._warned.clear()


class Columns(VectorEnv[Any, Any, Any]):
    """A vector environment in numpy, of episodes with these lengths; every third one is truncated."""

    def __init__(
        self,
        *lengths: int,
        mode: str = "next-step",
        says: object = ...,
        final: str = "objects",
        nested: bool = False,
        masked: bool = False,
    ) -> None:
        """`mode` is what it does, `says` what its metadata say. `final` is the form of last observations."""
        self.num_envs = len(lengths)
        self.lengths, self.mode, self.final, self.nested, self.masked = np.array(lengths), mode, final, nested, masked
        self.metadata = {"autoreset_mode": MODES[mode] if says is ... else says}
        if says is None:
            self.metadata = {}
        self.single_observation_space = NESTED if nested else BOX
        self.single_action_space = spaces.Discrete(2)
        self.episode = np.zeros(self.num_envs, int)
        self.tick = np.zeros(self.num_envs, int)
        self.over = np.zeros(self.num_envs, bool)
        self.played: list[list[tuple[int, int, bool]]] = [[] for _ in lengths]
        """Each step that was played: episode, tick after it, whether it ended the episode."""
        self.seeds: list[Any] = []
        self.options: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        chosen = np.ones(self.num_envs, bool) if not options or "reset_mask" not in options else options["reset_mask"]
        self.seeds.append(seed)
        self.options.append(options)
        self._begin(chosen)
        return self._observe(), self._info({})

    def step(self, actions: Any) -> Any:
        dummy = self.over & (self.mode == "next-step")
        assert not (self.over & (self.mode == "disabled")).any(), "it was not reset"
        self._begin(dummy)
        self.tick = self.tick + ~dummy
        rewards = np.where(dummy, 0.0, self.tick)
        done = ~dummy & (self.tick >= self.lengths)
        for agent in np.flatnonzero(~dummy):
            self.played[agent].append((self.episode[agent], self.tick[agent], bool(done[agent])))
        truncated = done & (self.episode % 3 == 0)
        self.over = done
        info: dict[str, Any] = {}
        if self.mode == "same-step" and done.any():
            info = self._finals(done)
            self._begin(done)
        return self._observe(), rewards, done & ~truncated, truncated, self._info(info)

    def _begin(self, chosen: Any) -> None:
        self.episode = self.episode + chosen
        self.tick = np.where(chosen, 0, self.tick)
        self.over = self.over & ~chosen

    def _observe(self) -> Any:
        values = np.stack([self.episode, self.tick], 1).astype(np.float32)
        return {"a": values, "b": (values.copy(),)} if self.nested else values

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.masked:
            info = {**info, "action_mask": np.stack([np.ones(self.num_envs), self.tick % 2], 1).astype(np.int8)}
        return info

    def _finals(self, done: Any) -> dict[str, Any]:
        now = self._observe()
        key = "final_observation" if self.final == "old" else "final_obs"
        if self.final == "none":
            return {}
        if self.final == "array":
            return {key: now}
        every = np.full(self.num_envs, None, object)
        for agent in np.flatnonzero(done):
            every[agent] = {"a": now["a"][agent], "b": (now["b"][0][agent],)} if self.nested else now[agent]
        mask = done.copy()
        if self.final == "hole":
            mask[np.flatnonzero(done)[0]] = False
        return {key: every, f"_{key}": mask}


def turns(simulation: VectorSimulation, decisions: int, start: ResetInfo = START) -> Iterator[BehaviorBatch]:
    """Answer everything with choice 0 at once, and yield what the simulation says, decoded from the wire."""
    session = Session(simulation.behaviors)
    layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
    session.parameters.change(start.parameters, {})
    builder = session.new_step()
    simulation.reset(builder, start)
    while decisions > 0:
        actions = Actions()
        for request in session.requests(builder):
            (batch,) = decode_step(request.step, layouts)
            yield batch
            if batch.decisions is not None:
                decisions -= 1
                count = len(batch.decisions.agent_ids)
                answer = ActionBatch("Count", None, np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
                actions = session.actions(encode_actions(request.step.step_id, [answer]))
        builder = session.new_step()
        simulation.step(builder, actions)


def experience(batches: Iterator[BehaviorBatch], agents: int) -> list[list[tuple[int, int, bool]]]:
    """Return the steps that a learner gets of each agent, as the environment keeps them, and check each of them."""
    steps: list[list[tuple[int, int, bool]]] = [[] for _ in range(agents)]
    before: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for part in (batch.terminals, batch.decisions):
            if part is None:
                continue
            for observation in part.observations[1:]:
                np.testing.assert_array_equal(observation, part.observations[0])
            for row, agent in enumerate(part.agent_ids.tolist()):
                episode, tick = (int(value) for value in part.observations[0][row])
                if agent in before:
                    assert (episode, tick - 1) == before[agent], "it follows from the observation that was acted on"
                    assert part.rewards[row] == tick
                    steps[agent].append((episode, tick, part is batch.terminals))
                else:
                    assert (tick, part.rewards[row]) == (0, 0), "an episode begins with its first observation"
                before[agent] = (episode, tick)
                if part is batch.terminals:
                    assert bool(batch.terminals.truncated[row]) is (episode % 3 == 0)
                    del before[agent]
    return steps


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    mode=st.sampled_from(sorted(MODES)),
    final=st.sampled_from(["objects", "old", "array"]),
    nested=st.booleans(),
    known=st.sampled_from(["said", "told", "assumed"]),
    masked=st.booleans(),
)
def test_the_experience_is_that_which_the_game_played(
    lengths: list[int], mode: str, final: str, nested: bool, known: str, masked: bool
) -> None:
    says = ... if known == "said" or mode == "disabled" else None
    envs = Columns(*lengths, mode=mode, says=says, final=final, nested=nested, masked=masked)
    simulation = VectorSimulation(envs, "Count", autoreset=mode if known == "told" else None)

    steps = experience(turns(simulation, 30), len(lengths))

    for arrived, played in zip(steps, envs.played, strict=True):
        assert arrived == played[: len(arrived)]
        assert len(played) - len(arrived) <= 1, "at most the newest step is not told yet"
    assert simulation.finished == sum(ended for played in envs.played for *_, ended in played)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("observation", ["box", "dict"])
def test_the_experience_of_gymnasiums_own_vectors_is_that_which_the_game_played(
    mode: AutoresetMode, observation: str
) -> None:
    envs = SyncVectorEnv([lambda: Counting(3, 99, observation)], autoreset_mode=mode)
    simulation = VectorSimulation(envs, "Count")

    batches = list(turns(simulation, 20))

    rewards = [
        float(part.rewards[0]) for batch in batches for part in (batch.terminals, batch.decisions) if part is not None
    ]
    arrived = [reward for reward in rewards if reward > 0]
    assert arrived == [1 + index % 3 for index in range(len(arrived))]
    played = len(envs.envs[0].unwrapped.actions)  # type: ignore[attr-defined]  # its own list
    assert played - len(arrived) in {0, 1}, "at most the newest step is not told yet"
    ends = [batch.terminals for batch in batches if batch.terminals is not None]
    assert [end.observations[0][0].tolist() for end in ends] == [[index + 1, 3] for index in range(len(ends))]


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("environment", "told", "words"),
    [
        (Columns(3, says=None), None, "does not say how it begins episodes"),
        (Columns(3, says=None), "next-step", ""),
        (Columns(3, mode="same-step", says=None), None, "its autoreset is same-step"),
        (Columns(3), "same-step", None),
        (Columns(3, mode="same-step"), "next-step", "it is played as next-step"),
        (Columns(3, mode="same-step"), "next-step", "is it --autoreset same-step?"),
        (Columns(3, mode="same-step", says="SameStep"), None, ""),
    ],
)
def test_what_is_told_is_compared_with_what_is_seen(
    environment: Columns, told: str | None, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ludus.sdk")
    simulation = VectorSimulation(environment, "Count", autoreset=told)
    if words is None:
        with pytest.raises(GameMistake, match=r"has no 'final_obs'.*--autoreset next-step"):
            list(turns(simulation, 6))
        return

    list(turns(simulation, 6))

    assert words in logged(caplog)
    assert bool(words) is bool(caplog.records)


def test_a_silent_environment_that_plays_on_after_an_end_is_an_error() -> None:
    silent = Columns(3, mode="same-step", says=None, final="none")

    with pytest.raises(GameMistake, match=r"environment 0 of 1.*a reward of 1 in the step after an end.*same-step"):
        list(turns(VectorSimulation(silent, "Count"), 6))


def test_one_that_says_so_and_plays_on_after_an_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    wrong = Columns(3, mode="same-step", says=AutoresetMode.NEXT_STEP, final="none")

    list(turns(VectorSimulation(wrong, "Count"), 6))

    assert "is that its autoreset?" in logged(caplog)


def test_a_reset_that_does_not_look_at_its_mask_is_an_error() -> None:
    class Deaf(Columns):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=seed)

    with pytest.raises(GameMistake, match="environment 1 of 2: its reset changes environments"):
        list(turns(VectorSimulation(Deaf(2, 5, says=None), "Count", autoreset="disabled"), 6))


def test_a_missing_last_observation_is_named() -> None:
    holes = Columns(5, 2, mode="same-step", final="hole")

    with pytest.raises(GameMistake, match="environment 1 of 2: the info's 'final_obs' has nothing of environment 1"):
        list(turns(VectorSimulation(holes, "Count"), 6))


def test_episodes_can_be_seeded_where_the_game_is_reset_by_a_mask() -> None:
    envs = Columns(2, 3, mode="disabled")
    simulation = VectorSimulation(envs, "Count", seed_parameter="opening")

    list(turns(simulation, 4, ResetInfo(5, {"opening": 7.0, "wind": 2.0}, 0, "run-1", first=True)))

    assert envs.seeds[:3] == [
        [7, episode_seed(7, 1, 0)],
        [episode_seed(7, 0, 1), None],
        [None, episode_seed(7, 1, 1)],
    ]
    assert envs.options[0] == {"wind": 2.0}
    assert envs.options[1].keys() == {"wind", "reset_mask"}


@pytest.mark.parametrize("mode", ["next-step", "same-step"])
def test_episodes_that_begin_by_themselves_cannot_be_seeded(mode: str) -> None:
    with pytest.raises(GameNotMade, match=f"autoreset {mode}.*--autoreset disabled"):
        VectorSimulation(Columns(2, mode=mode), "Count", seed_parameter="opening")


def test_new_parameters_that_never_reach_the_game_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    simulation = VectorSimulation(Columns(2), "Count")
    session = Session(simulation.behaviors)
    builder = session.new_step()
    simulation.reset(builder, START)
    session.requests(builder)
    message = encode_actions(1, [ActionBatch("Count", None, np.zeros((1, 0), np.float32), np.zeros((1, 1), np.int32))])
    message.environment_parameters.update({"wind": 2.0})
    actions = session.actions(message)

    simulation.step(session.new_step(), actions)

    assert "never gets them" in logged(caplog)


def test_an_error_in_the_middle_is_the_games_own() -> None:
    class Fragile(Columns):
        def step(self, actions: Any) -> Any:
            if self.tick[0] == 2:
                raise RuntimeError("the level file is missing")
            return super().step(actions)

    with pytest.raises(RuntimeError, match="level file"):
        list(turns(VectorSimulation(Fragile(9), "Count"), 6))


def test_masks_of_all_environments_are_read_at_once_and_a_wrong_one_is_named() -> None:
    class Forbidding(Columns):
        def _info(self, info: dict[str, Any]) -> dict[str, Any]:
            masks = np.ones((2, 2), np.int8)
            masks[1] = self.tick[1] < 2
            return {"action_mask": masks}

    with pytest.raises(GameMistake, match="environment 1 of 2: the action mask forbids every choice of branch 0"):
        list(turns(VectorSimulation(Forbidding(9, 9), "Count"), 6))


@pytest.mark.parametrize(
    ("env_id", "count", "options", "words"),
    [
        ("Nope-v1", 2, {}, "Nope"),
        ("Pendulum-v1", 2, {"arguments": {"vectorization_mode": "vector_entry_point"}}, "vector entry point"),
        ("CartPole-v1", 2, {"arguments": {"vectorization_mode": "sideways"}}, "Invalid vectorization mode"),
        ("CartPole-v1", 2, {"arguments": {"gravity": 3}}, "unexpected keyword argument 'gravity'"),
        ("CartPole-v1", 2, {"seed_parameter": "opening"}, "cannot be seeded one by one"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_reason(
    env_id: str, count: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(GameNotMade, match=words):
        make_simulation(env_id, count, **options)


def test_an_id_is_made_as_its_own_vector_or_as_one_of_single_environments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ludus.sdk")
    for env_id, arguments, words in (
        ("CartPole-v1", {}, "CartPoleVectorEnv (vectorization_mode=vector_entry_point), autoreset next-step"),
        ("CartPole-v1", {"vectorization_mode": "sync"}, "SyncVectorEnv (vectorization_mode=sync)"),
        ("Pendulum-v1", {}, "SyncVectorEnv (vectorization_mode=sync), autoreset next-step"),
    ):
        simulation = make_simulation(env_id, 3, arguments=arguments)
        simulation.reset(Session(simulation.behaviors).new_step(), START)
        simulation.close()
        assert words in logged(caplog)


def test_a_mode_that_is_told_is_set_where_it_can_be() -> None:
    simulation = make_simulation("Pendulum-v1", 2, autoreset="disabled", seed_parameter="opening")

    assert simulation.mode is AutoresetMode.DISABLED
    simulation.close()


def test_environments_in_processes_of_their_own_are_played() -> None:
    simulation = make_simulation("CartPole-v1", 2, arguments={"vectorization_mode": "async"})
    builder = Session(simulation.behaviors).new_step()
    simulation.reset(builder, START)

    (batch,) = builder.batches()

    assert batch.decisions is not None
    assert batch.decisions.observations[0].shape == (2, 4)
    simulation.close()


def test_a_space_without_a_counterpart_is_refused() -> None:
    class Texts(Columns):
        def __init__(self) -> None:
            super().__init__(3)
            self.single_observation_space = spaces.Text(5)  # type: ignore[assignment]

    with pytest.raises(ValueError, match="the observation space is Text"):
        VectorSimulation(Texts(), "Count")


def test_ales_own_vectors_give_their_last_pictures() -> None:
    """ALE gives last observations as one array of all environments."""
    ale = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale)
    simulation = make_simulation("ALE/Pong-v5", 2, autoreset="same-step", arguments={"max_num_frames_per_episode": 80})
    assert simulation.mode is AutoresetMode.SAME_STEP
    session = Session(simulation.behaviors)
    builder = session.new_step()
    simulation.reset(builder, START)
    ends = []
    for step in range(1, 60):
        session.requests(builder)
        answer = ActionBatch("Pong", None, np.zeros((2, 0), np.float32), np.zeros((2, 1), np.int32))
        builder = session.new_step()
        simulation.step(builder, session.actions(encode_actions(step, [answer])))
        ends += [batch.terminals for batch in builder.batches() if batch.terminals is not None]

    assert ends
    assert all(end.observations[0].shape[1:] == (4, 84, 84) and end.truncated.all() for end in ends)
    simulation.close()
