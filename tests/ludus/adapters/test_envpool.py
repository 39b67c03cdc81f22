"""Pools of EnvPool: every step is experience once, whoever of the pool is ready first."""

import itertools
import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from ludus.protocol.batches import ActionBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import Actions, ResetInfo
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.session import Session

pytest.importorskip("envpool")

from ludus.adapters.envpool import PoolSimulation, make_simulation

START = ResetInfo(seed=5, parameters={}, number=0, run_id="run-1", first=True)
LIMIT = 9
"""Steps of an episode of CartPole that never falls so soon."""


def played(simulation: PoolSimulation, messages: int, start: ResetInfo = START) -> dict[int, list[tuple[Any, ...]]]:
    """Play; return what arrived of each agent: D, T or X (truncated), the reward, and the observation."""
    session = Session(simulation.behaviors)
    layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
    events: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    builder = session.new_step()
    simulation.reset(builder, start)
    while messages > 0:
        actions = Actions()
        for request in session.requests(builder):
            messages -= 1
            (batch,) = decode_step(request.step, layouts)
            if (ending := batch.terminals) is not None:
                for row, agent in enumerate(ending.agent_ids.tolist()):
                    kind = "X" if ending.truncated[row] else "T"
                    events[agent].append((kind, float(ending.rewards[row]), ending.observations[0][row].copy()))
            if (asking := batch.decisions) is not None:
                for row, agent in enumerate(asking.agent_ids.tolist()):
                    events[agent].append(("D", float(asking.rewards[row]), asking.observations[0][row].copy()))
                count = len(asking.agent_ids)
                choices = (np.arange(count, dtype=np.int32)[:, None] + messages) % 2
                answer = ActionBatch(batch.behavior, None, np.zeros((count, 0), np.float32), choices)
                actions = session.actions(encode_actions(request.step.step_id, [answer]))
        builder = session.new_step()
        simulation.step(builder, actions)
    simulation.close()
    return events


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 3}, {"batch_size": 1, "num_threads": 2}])
def test_no_dummy_step_becomes_experience_and_last_observations_are_those_of_their_episodes(
    arguments: dict[str, object],
) -> None:
    simulation = make_simulation("CartPole-v1", 7, arguments={"max_episode_steps": LIMIT, **arguments})

    events = played(simulation, 200)

    assert len(events) == 7
    for of_agent in events.values():
        kinds = "".join(kind for kind, *_ in of_agent)
        episodes = re.findall("(D+)([TX])", kinds)
        assert episodes
        assert all(len(steps) == LIMIT for steps, end in episodes if end == "X"), "each step once, and no dummy"
        assert all(len(steps) <= LIMIT for steps, _ in episodes)
        for (before, _, observed), (kind, reward, then) in itertools.pairwise(of_agent):
            if before == "D":
                assert reward == 1.0
                # CartPole moves by 0.02 of its velocities: the last observation belongs to the same episode.
                np.testing.assert_allclose(then[[0, 2]], observed[[0, 2]] + 0.02 * observed[[1, 3]], atol=1e-5)
            else:
                assert (kind, reward) == ("D", 0.0)
                assert np.abs(then).max() <= 0.05, "an episode of CartPole begins near 0"


def test_a_seed_repeats_the_episodes_and_a_reset_does_not() -> None:
    def firsts(simulation: PoolSimulation) -> list[list[float]]:
        builder = Session(simulation.behaviors).new_step()
        simulation.reset(builder, START)
        (batch,) = builder.batches()
        assert batch.decisions is not None
        return batch.decisions.observations[0].tolist()  # type: ignore[no-any-return]  # numpy's stubs say Any

    one, same, other = (make_simulation("CartPole-v1", 3, seed=seed) for seed in (7, 7, 8))

    first = firsts(one)
    assert first == firsts(same) != firsts(other)
    assert firsts(one) != first
    assert len({tuple(row) for row in first}) == 3


def test_a_partial_answer_keeps_the_others_waiting() -> None:
    simulation = make_simulation("CartPole-v1", 4, arguments={"batch_size": 2})
    session = Session(simulation.behaviors)
    builder = session.new_step()
    simulation.reset(builder, START)
    (batch,) = builder.batches()
    assert batch.decisions is not None
    one = batch.decisions.agent_ids[:1]
    session.requests(builder)

    builder = session.new_step()
    answer = ActionBatch("CartPole", one, np.zeros((1, 0), np.float32), np.zeros((1, 1), np.int32))
    simulation.step(builder, session.actions(encode_actions(1, [answer])))

    (more,) = builder.batches()
    assert more.decisions is not None
    assert not set(more.decisions.agent_ids.tolist()) & set(batch.decisions.agent_ids[1:].tolist())
    simulation.close()


@pytest.mark.parametrize(
    ("env_id", "count", "options", "words"),
    [
        ("Nope-v1", 2, {}, "no environment 'Nope-v1'"),
        ("CartPole-v1", 0, {}, "give 1 or more"),
        ("CartPole-v1", 4, {"arguments": {"batch_size": 5}}, "a number from 1 to 4"),
        ("CartPole-v1", 4, {"arguments": {"num_envs": 5}}, "use --envs"),
        ("CartPole-v1", 4, {"arguments": {"gravity": 5}}, "unexpected keyword argument 'gravity'"),
        ("CartPole-v1", 4, {"seed_parameter": "opening"}, "cannot be seeded one by one"),
        ("CartPole-v1", 4, {"autoreset": "same-step"}, "leave out --autoreset same-step"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_reason(
    env_id: str, count: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(GameNotMade, match=words):
        make_simulation(env_id, count, **options)
