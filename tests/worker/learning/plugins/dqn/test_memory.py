"""DQN with a memory: what is learned from sequences, compared with the same written down step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from tests.worker.learning.algorithms.off_policy_world import make_dqn, make_dqn_config, one_episode, random_round
from tests.worker.learning.plugins.dqn.test_algorithm import ALL, TWO_SIGNALS
from tests.worker.rollouts import equal_states, make_spec, random_rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.plugins.dqn.algorithm import DQN, Batch, counted, sequence_errors

LENGTH, SIZE = 4, 6
MEMORY = {"memory": {"sequence_length": LENGTH, "memory_size": SIZE}}
SPEC = make_spec(observations=(3, 2), branches=(3, 2))
ENDS = [SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED, SegmentEnd.CUT]


def filled(*, masked: bool = True, network: dict[str, Any] | None = None, **hyper: Any) -> DQN:
    """A learner whose replay buffer holds episodes that are longer and shorter than a sequence."""
    dqn = make_dqn(SPEC, network={**MEMORY, **(network or {})}, batch_size=128, **hyper)
    rng = np.random.default_rng(1)
    dqn.store(random_rollout(SPEC, (9, 1, 6), rng, memory_size=SIZE, masked=masked, ending=ENDS))
    return dqn


@torch.no_grad()
def step_by_step(dqn: DQN, row: int, *, target: bool) -> list[Tensor]:
    """Q, (S, M), at each observation from a row of the buffer to the end of its episode, one step at a time."""
    replay, network = dqn.experience.replay, dqn.model
    body, heads = (network.target_body, network.target_heads) if target else (network.actor.body, network.heads)
    memory, found = replay._memories[[row]], []
    while True:
        encoded = dqn.actor.encode([column[[row]] for column in replay._observations])
        features, memory = body(encoded, memory)
        found.append(heads(features)[0])
        if row >= replay.capacity:
            return found
        row = int(replay._links[row, 0])


def chain(dqn: DQN, row: int) -> list[int]:
    """The rows of an episode from one of them on, that of its last observation included."""
    rows = [row]
    while rows[-1] < dqn.experience.replay.capacity:
        rows.append(int(dqn.experience.replay._links[rows[-1], 0]))
    return rows


def expected_loss(dqn: DQN, batch: Batch, n_step: int) -> float:
    """The loss of the sequences of a batch, from its definition: every step with a memory of its own way there."""
    replay, total, steps = dqn.experience.replay, 0.0, 0
    bounds = dqn._bounds
    gamma = float(dqn.signals.gamma[0])
    for start in batch.rows.tolist():
        rows = chain(dqn, start)
        online, target = (step_by_step(dqn, start, target=which) for which in (False, True))
        for at in range(min(len(rows) - 1, LENGTH)):
            ahead = min(at + n_step, len(rows) - 1)
            y = sum(gamma ** (step - at) * float(replay._rewards[rows[step]]) for step in range(at, ahead))
            masks = torch.ones(5, dtype=torch.bool)
            if rows[ahead] < replay.capacity:
                masks = replay._masks[rows[ahead]]
            errors = []
            for branch, (first, stop) in enumerate(bounds):
                best = int(online[ahead][0, first:stop].masked_fill(~masks[first:stop], -1e9).argmax())
                ended = replay._endings[rows[ahead - 1]] == SegmentEnd.TERMINATED
                following = 0.0 if ended else gamma ** (ahead - at) * float(target[ahead][0, first + best])
                taken = float(online[at][0, first + int(replay._discrete[rows[at], branch])])
                error = abs(taken - y - following)
                errors.append(0.5 * error**2 if error < 1 else error - 0.5)
            total += float(np.mean(errors))
            steps += 1
    return total / steps


@pytest.mark.parametrize("hyper", [{}, {"n_step": 3, "dueling": True}], ids=["plain", "ahead"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_of_sequences_is_that_of_their_steps_one_by_one(normalize: bool, hyper: dict[str, Any]) -> None:
    dqn = filled(network={"normalize": normalize}, **hyper)
    dqn.experience.adopt_statistics()
    with torch.no_grad():
        for parameter in dqn.model.target_parameters():
            parameter.add_(0.05)

    batch = dqn.batch()
    loss, errors, best = dqn.loss(batch)

    assert len(errors) < 32 * LENGTH, "some sequences are cut short"
    assert loss.item() == pytest.approx(expected_loss(dqn, batch, hyper.get("n_step", 1)), rel=1e-4)
    assert best.shape == (1,)


def test_every_signal_has_its_sequences_of_values() -> None:
    dqn = make_dqn(SPEC, make_dqn_config(signals=TWO_SIGNALS, network=MEMORY, batch_size=32, **ALL))
    rng = np.random.default_rng(1)

    metrics = dqn.update(random_round(SPEC, rng, memory_size=SIZE, masked=True), 64)
    metrics = dqn.update(random_round(SPEC, rng, memory_size=SIZE, masked=True, episodes=[1] * 3), 128)

    assert metrics is not None
    assert np.isfinite(list(metrics.values())).all()
    assert {"Policy/Extrinsic Value", "Policy/Curiosity Value"} <= metrics.keys()


def test_a_step_is_valued_by_what_was_seen_before_it() -> None:
    dqn = filled()
    batch = dqn.batch()
    assert batch.learned is not None
    encoded = [part.clone().requires_grad_() for part in batch.encoded]
    last = int(batch.learned[batch.learned % LENGTH == LENGTH - 1][0])  # a fourth step

    q = dqn.model.q(encoded, batch.memory)
    q[last].sum().backward()

    moved = encoded[0].grad
    assert moved is not None
    steps = moved.abs().sum(1).view(-1, LENGTH)
    sequence = last // LENGTH
    assert bool((steps[sequence] > 0.0).all()), "all steps of its sequence"
    assert float(steps.sum() - steps[sequence].sum()) == 0.0, "and none of another one"


def test_the_gradient_of_the_loss_flows_through_time() -> None:
    dqn = filled()
    dqn.optimizer.zero_gradient()

    with torch.enable_grad():
        dqn.loss(dqn.batch())[0].backward()

    memory = dqn.actor.body.memory
    assert memory is not None
    for weight in (memory.hidden_weight, memory.input_weight):
        assert weight.grad is not None
        assert float(weight.grad.abs().sum()) > 0.0


def test_what_stands_behind_the_end_of_a_sequence_changes_nothing() -> None:
    dqn = filled(prioritized=True, n_step=2)
    state = dqn.generator.get_state()
    batch = dqn.batch()
    dqn.generator.set_state(state)
    drawn = dqn.experience.replay.sequences(batch.rows, LENGTH + 1)
    assert drawn.real is not None
    real = drawn.real.view(-1, LENGTH + 1)
    padded = (~real[:, :LENGTH]).flatten()
    # of the T + 1 observations of a sequence that of its end is bootstrapped from
    behind_end = torch.cat([torch.zeros(len(real), 1, dtype=torch.bool), ~real], 1)
    behind_end[torch.arange(len(real)), real.sum(1)] = False
    assert bool(padded.any())
    noise = torch.full((1,), 7.0)

    altered = batch._replace(
        encoded=[part.where(~padded.unsqueeze(1), noise) for part in batch.encoded],
        following=[part.where(~behind_end.flatten().unsqueeze(1), noise) for part in batch.following],
    )

    for one, other in zip(dqn.loss(batch), dqn.loss(altered), strict=True):
        assert torch.equal(one, other)


def test_a_stored_memory_is_burnt_in_and_that_of_an_episodes_beginning_is_exact() -> None:
    real = torch.tensor([[True] * 4, [True] * 4, [True, True, False, False], [True, False, False, False]])
    memories = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.5, 0.1], [0.0, 0.1]])

    assert counted(real, memories, 0).int().tolist() == real.int().tolist()
    assert counted(real, memories, 2).int().tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 0, 0]]


def test_steps_of_the_burn_in_are_not_learned_from() -> None:
    all_steps, burnt_in = filled().batch(), filled(burn_in=2).batch()

    assert burnt_in.memory is not None
    assert burnt_in.learned is not None
    assert all_steps.learned is not None
    assert set(burnt_in.learned.tolist()) < set(all_steps.learned.tolist())
    stored = burnt_in.memory.any(1)[burnt_in.learned // LENGTH]
    assert float(burnt_in.weights.sum()) == pytest.approx(1.0)
    assert bool((burnt_in.learned % LENGTH < 2)[~stored].any())


def test_a_sequence_is_drawn_by_the_largest_error_of_its_steps_and_their_mean() -> None:
    found = sequence_errors(torch.tensor([1.0, 5.0, 2.0]), torch.tensor([0, 0, 1]), 2)

    assert found.tolist() == pytest.approx([0.9 * 5.0 + 0.1 * 3.0, 2.0])


def test_a_gradient_step_sets_the_priority_of_the_first_step_of_each_sequence() -> None:
    dqn = make_dqn(network=MEMORY, prioritized=True, priority_exponent=1.0, batch_size=4 * LENGTH)
    dqn.store(one_episode([0.0] * 8, SegmentEnd.TERMINATED, memories=np.zeros((8, SIZE))))
    assert dqn.priorities is not None
    before = dqn.priorities.state_dict()["powers"][:8].clone()

    rows = dqn.batch().rows
    dqn.generator.manual_seed(1)
    dqn.gradient_step(1e-9)

    changed = (dqn.priorities.state_dict()["powers"][:8] != before).nonzero().flatten().tolist()
    assert len(rows) == 4
    assert 0 < len(changed) <= 4


def test_the_memory_of_the_actor_and_of_the_learner_are_one() -> None:
    dqn = filled()
    dqn.model.fold()
    batch = dqn.batch()
    q = dqn.model.q(batch.encoded, batch.memory)

    head, _ = dqn.actor(batch.encoded, batch.memory, length=LENGTH)

    torch.testing.assert_close(head, q.sum(1), rtol=1e-4, atol=1e-5)


def test_an_update_that_diverges_is_taken_back() -> None:
    dqn, rng = make_dqn(SPEC, network=MEMORY, **ALL), np.random.default_rng(1)
    dqn.update(random_round(SPEC, rng, memory_size=SIZE), 16)
    before = dqn.state_dict()

    with pytest.raises(Diverged):
        dqn.update(random_round(SPEC, rng, memory_size=SIZE, rewards=np.full(16, np.float32(3e38))), 32)

    after = dqn.state_dict()
    for name in ("model", "optimizer", "gradient_steps", "version"):
        assert equal_states(before[name], after[name]), name
