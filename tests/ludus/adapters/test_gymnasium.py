"""Gymnasium environments keep their rewards, ends and final observations on the way to the server.

The environment counts: observation = (episode, tick), so that a mixed-up observation is seen at once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ludus.adapters.gymnasium import EnvironmentSimulation, behavior_name, make_simulation
from ludus.adapters.vector import VectorSimulation
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, BehaviorBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from ludus.sdk.seeds import environment_seed, episode_seed
from ludus.sdk.session import Session

START = ResetInfo(seed=5, parameters={}, number=0, run_id="run-1", first=True)


class Counting(gymnasium.Env[Any, Any]):
    """Terminates after `length` steps, or is truncated after `limit` steps. Reward = tick."""

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3, limit: int = 99, observation: str = "box") -> None:
        self.length, self.limit, self.kind = length, limit, observation
        self.episode, self.tick = 0, 0
        self.seeds: list[int | None] = []
        self.actions: list[int] = []
        box = spaces.Box(-1, 100, (2,), np.float32)
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Tuple((box,))}) if observation == "dict" else box

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options = options
        self.episode, self.tick = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(int(action))
        self.tick += 1
        return (
            self._observe(),
            float(self.tick),
            self.tick >= self.length,
            self.tick >= self.limit,
            {"is_success": True},
        )

    def _observe(self) -> Any:
        value = np.array([self.episode, self.tick], np.float32)
        return {"a": value, "b": (value.copy(),)} if self.kind == "dict" else value


class Masked(Counting):
    """Allows only the second choice after a reset."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**arguments)[0], {"action_mask": np.array([0, 1], np.int8)}


def vector(mode: AutoresetMode) -> Callable[..., Simulation]:
    def make(*makers: Callable[[], Counting]) -> Simulation:
        return VectorSimulation(SyncVectorEnv(list(makers), autoreset_mode=mode), "Counter")

    return make


def singles(*makers: Callable[[], Counting]) -> Simulation:
    return EnvironmentSimulation([make() for make in makers], "Counter")


KINDS = {
    "single": singles,
    "same_step": vector(AutoresetMode.SAME_STEP),
    "next_step": vector(AutoresetMode.NEXT_STEP),
    "disabled": vector(AutoresetMode.DISABLED),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[..., Simulation]:
    return KINDS[request.param]


def first_choice(agents: int = 1, agent: int | None = None, behavior: str = "Counter") -> ActionBatch:
    """Return choice 0 for so many agents in their order, or for the one that is named."""
    ids = None if agent is None else np.array([agent], np.int32)
    return ActionBatch(behavior, ids, np.zeros((agents, 0), np.float32), np.zeros((agents, 1), np.int32))


def begun(simulation: Simulation) -> tuple[Session, StepBuilder]:
    """Begin to play; return the session, and the message of the first agents."""
    session = Session(simulation.behaviors)
    builder = session.new_step()
    simulation.reset(builder, START)
    return session, builder


def stepped(simulation: Simulation, session: Session, step: int, batch: ActionBatch) -> StepBuilder:
    """Let the simulation take the answer of a step; return its next message."""
    builder = session.new_step()
    simulation.step(builder, session.actions(encode_actions(step, [batch])))
    return builder


def play(simulation: Simulation, decisions: int, start: ResetInfo = START) -> Iterator[BehaviorBatch]:
    """Answer everything with choice 0 at once, and yield what the simulation says."""
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
                answer = first_choice(len(batch.decisions.agent_ids))
                actions = session.actions(encode_actions(request.step.step_id, [answer]))
        builder = session.new_step()
        simulation.step(builder, actions)


def history(batches: Iterator[BehaviorBatch], agent: int) -> list[tuple[Any, ...]]:
    """Per event of an agent: D or T or X (truncated), the reward, and the observation."""
    events: list[tuple[Any, ...]] = []
    for batch in batches:
        if batch.terminals is not None and agent in batch.terminals.agent_ids:
            row = batch.terminals.agent_ids.tolist().index(agent)
            kind = "X" if batch.terminals.truncated[row] else "T"
            events.append((kind, batch.terminals.rewards[row], *batch.terminals.observations[0][row]))
        if batch.decisions is not None and agent in batch.decisions.agent_ids:
            row = batch.decisions.agent_ids.tolist().index(agent)
            events.append(("D", batch.decisions.rewards[row], *batch.decisions.observations[0][row]))
    return events


def test_every_episode_ends_with_its_own_last_observation(make: Callable[..., Simulation]) -> None:
    events = history(play(make(Counting, lambda: Counting(length=5)), decisions=12), agent=0)

    assert events[:8] == [
        ("D", 0, 1, 0),
        ("D", 1, 1, 1),
        ("D", 2, 1, 2),
        ("T", 3, 1, 3),
        ("D", 0, 2, 0),
        ("D", 1, 2, 1),
        ("D", 2, 2, 2),
        ("T", 3, 2, 3),
    ]


def test_environments_that_end_together_go_on_together(make: Callable[..., Simulation]) -> None:
    events = history(play(make(Counting, Counting), decisions=6), agent=1)

    assert [event[0] for event in events[:8]] == ["D", "D", "D", "T", "D", "D", "D", "T"][: len(events)]
    assert len(events) >= 7


def test_a_time_limit_truncates_and_an_end_in_the_same_step_terminates(make: Callable[..., Simulation]) -> None:
    truncated = history(play(make(lambda: Counting(length=9, limit=2)), decisions=4), agent=0)
    both = history(play(make(lambda: Counting(length=2, limit=2)), decisions=4), agent=0)

    assert truncated[2] == ("X", 2, 1, 2)
    assert both[2] == ("T", 2, 1, 2)


def test_nested_observations_survive_the_end_of_an_episode(make: Callable[..., Simulation]) -> None:
    nested = make(lambda: Counting(length=2, observation="dict"), lambda: Counting(length=4, observation="dict"))

    for batch in play(nested, decisions=8):
        for part in (batch.decisions, batch.terminals):
            if part is not None:
                assert len(part.observations) == 2
                np.testing.assert_array_equal(part.observations[0], part.observations[1])
    assert [spec.name for spec in nested.behaviors[0].observations] == ["a", "b/0"]


def test_action_masks_of_the_environment_reach_the_server(make: Callable[..., Simulation]) -> None:
    batches = list(play(make(Masked), decisions=2))

    assert batches[0].decisions is not None
    assert batches[0].decisions.action_masks is not None
    assert batches[0].decisions.action_masks.tolist() == [[0, 1]]
    assert batches[1].decisions is not None
    assert batches[1].decisions.action_masks is None


def test_a_vector_environment_waits_until_all_its_agents_are_answered() -> None:
    simulation = vector(AutoresetMode.SAME_STEP)(Counting, Counting)
    session, builder = begun(simulation)
    session.requests(builder)

    assert session.requests(stepped(simulation, session, 1, first_choice(agent=1))) == []
    assert len(session.requests(stepped(simulation, session, 1, first_choice(agent=0)))) == 1


def test_single_environments_step_as_they_are_answered() -> None:
    simulation = singles(Counting, Counting)
    session, builder = begun(simulation)
    session.requests(builder)

    (request,) = session.requests(stepped(simulation, session, 1, first_choice(agent=1)))

    assert np.frombuffer(request.step.behaviors[0].decisions.agent_ids, np.int32).tolist() == [1]


def test_environments_are_seeded_once_and_each_differently() -> None:
    envs = [Counting(), Counting()]
    simulation = EnvironmentSimulation(envs, "Counter")

    list(play(simulation, decisions=8))
    list(play(simulation, decisions=1, start=ResetInfo(5, {"gravity": 2.0}, 0, "run-1", first=False)))

    seeds = [env.seeds[0] for env in envs]
    assert seeds == [environment_seed(START.seed, 0), environment_seed(START.seed, 1)]
    assert len(set(seeds)) == 2
    assert envs[0].seeds[1:] == [None] * (len(envs[0].seeds) - 1)
    assert envs[0].options == {"gravity": 2.0}


def test_later_episodes_have_the_newest_parameters_and_draws_of_their_own() -> None:
    env = Counting(length=2)
    simulation = EnvironmentSimulation([env], "Counter")
    session = Session(simulation.behaviors)
    wind = pb.Sampler(seed=1, uniform=pb.UniformDistribution(min_value=2, max_value=3))
    session.welcome(pb.Welcome(environment_parameters={"wind": 2.5, "gravity": 9.5}, samplers={"wind": wind}))
    builder = session.new_step()
    simulation.reset(builder, ResetInfo(5, dict(session.parameters), 0, "run-1", first=True))
    assert env.options == {"wind": 2.5, "gravity": 9.5}

    seen = []
    for step in range(1, 7):
        session.requests(builder)
        message = encode_actions(step, [first_choice()])
        if step == 5:  # in the middle of the third episode
            message.environment_parameters.update({"gravity": 1.5})
        builder = session.new_step()
        simulation.step(builder, session.actions(message))
        if env.tick == 0:
            seen.append(env.options)

    first, second, last = seen
    assert first["gravity"] == second["gravity"] == 9.5
    assert 2.0 <= first["wind"] <= 3.0
    assert first["wind"] != second["wind"]
    assert last == {"gravity": 1.5}


def test_a_seed_of_ones_own_replaces_the_runs() -> None:
    env = Counting()

    list(play(EnvironmentSimulation([env], "Counter", seed=9), decisions=1))

    assert env.seeds == [environment_seed(9, 0)]


def test_an_environment_parameter_can_seed_every_episode() -> None:
    envs = [Counting(), Counting()]
    simulation = EnvironmentSimulation(envs, "Counter", seed_parameter="opening")

    list(play(simulation, decisions=4, start=ResetInfo(5, {"opening": 7.0, "gravity": 2.0}, 0, "run-1", first=True)))
    list(play(simulation, decisions=1, start=ResetInfo(5, {"opening": 9.0}, 0, "run-1", first=False)))

    assert envs[0].seeds == [7, episode_seed(7, 0, 1), 9]
    assert envs[1].seeds == [episode_seed(7, 1, 0), episode_seed(7, 1, 1), episode_seed(9, 1, 0)]
    assert envs[0].options is None, "the seed is not for the game"


def test_a_final_observation_outlives_the_array_that_the_environment_uses_again() -> None:
    class Thrifty(Counting):
        seen = np.zeros(2, np.float32)

        def _observe(self) -> Any:
            self.seen[:] = self.episode, self.tick
            return self.seen

    events = history(play(singles(Thrifty), decisions=5), agent=0)

    assert events[3] == ("T", 3, 1, 3)


def test_environments_that_share_an_array_keep_their_own_observations() -> None:
    shared = np.zeros(2, np.float32)

    class Sharing(Counting):
        def _observe(self) -> Any:
            shared[:] = self.length, self.tick
            return shared

    for agent, length in enumerate((3, 5)):
        events = history(play(singles(lambda: Sharing(3), lambda: Sharing(5)), decisions=8), agent)
        assert {event[2] for event in events} == {length}


def test_an_environment_may_change_the_action_that_it_is_given() -> None:
    class Greedy(Counting):
        action_space = spaces.Box(-1, 1, (2,), np.float32)  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            action += 9
            return super().step(action[0])

    envs = [Greedy(), Greedy()]
    simulation = EnvironmentSimulation(envs, "Counter")
    begun(simulation)
    given = np.array([[0.25, 0.5], [-0.25, -0.5]], np.float32)
    batch = ActionBatch("Counter", np.array([0, 1], np.int32), given, np.zeros((2, 0), np.int32))

    simulation.step(Session(simulation.behaviors).new_step(), Actions([batch]))

    assert given.tolist() == [[0.25, 0.5], [-0.25, -0.5]]


def test_a_vector_environment_that_is_one_itself_is_seeded_by_a_number() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    firsts = []
    for seed in (7, 7, 8):
        simulation = VectorSimulation(envs, "CartPole", seed)
        (batch,) = begun(simulation)[1].batches()
        assert batch.decisions is not None
        firsts.append(batch.decisions.observations[0].tolist())

    assert firsts[0] == firsts[1] != firsts[2]
    assert len({tuple(row) for row in firsts[0]}) == 3


def test_neighbouring_simulators_do_not_share_seeds() -> None:
    seeds = {environment_seed(seed, agent) for seed in range(50) for agent in range(20)}

    assert len(seeds) == 1000


def test_success_is_reported_at_the_end_of_an_episode() -> None:
    simulation = singles(Counting)
    session, builder = begun(simulation)
    stats = []
    for step in range(1, 5):
        session.requests(builder)
        builder = stepped(simulation, session, step, first_choice())
        stats.extend(builder.stats)

    assert [(stat.key, stat.value) for stat in stats] == [("Environment/Success", 1.0)]


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "CartPole"),
        ("ALE/Pong-v5", "Pong"),
        ("my_game.envs:Hunt-v0", "Hunt"),
        ("Hunt-very", "Hunt-very"),
    ],
)
def test_a_behavior_is_named_after_its_environment(env_id: str, name: str) -> None:
    assert behavior_name(env_id) == name


def test_cartpole_has_the_spec_that_its_space_says() -> None:
    simulation = make_simulation("CartPole-v1", 2)

    (spec,) = simulation.behaviors
    assert spec.name == "CartPole"
    assert spec.observations[0].shape == (4,)
    assert spec.actions.discrete_branches == (2,)
    simulation.close()


def test_an_environment_is_made_with_its_own_arguments() -> None:
    simulation = make_simulation("CartPole-v1", arguments={"max_episode_steps": 3})
    session, builder = begun(simulation)

    for step in range(1, 4):
        session.requests(builder)
        builder = stepped(simulation, session, step, first_choice(behavior="CartPole"))

    assert simulation.finished == 1
    simulation.close()
