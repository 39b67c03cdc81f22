"""PPO with a memory: what it computes in sequences equals living through every episode step by step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from tests.toys.drills import Recall
from tests.toys.playing import Training, training
from tests.worker.rollouts import make_config, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.experience.transitions import sequences_of
from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.ppo import PPO

CPU = torch.device("cpu")
AGENTS = 8
CUE = {"memory_size": 32, "sequence_length": 4}


def make_training(*, length: int = 3, shared_critic: bool = False, steps: int = 40, **overrides: Any) -> Training:
    """Eight agents in episodes of four steps. Rounds of 40 steps cut every other one in its middle."""
    network = {"hidden_units": 8, "num_layers": 1, "memory": {"memory_size": 6, "sequence_length": length}}
    hyper = {"batch_size": 12, "buffer_size": steps, "num_epoch": 2, "learning_rate": 1e-2, **overrides}
    return training(Recall(agents=AGENTS), network=network, shared_critic=shared_critic, **hyper)


def collect(run: Training) -> Rollout:
    return run.arcade.collect(run.algorithm.flat_weights(), run.algorithm.version)


def ppo_of(run: Training) -> PPO:
    assert isinstance(run.algorithm, PPO)
    return run.algorithm


def rows_of(rollout: Rollout) -> list[range]:
    """The rows of each segment."""
    ends = rollout.lengths.cumsum(0).tolist()
    return [range(end - length, end) for end, length in zip(ends, rollout.lengths.tolist(), strict=True)]


class Life:
    """Every agent's memory of a network, step by step, over any number of rollouts."""

    def __init__(self) -> None:
        self.memories: dict[tuple[int, int, int], Tensor] = {}

    def through(self, rollout: Rollout, body: Any) -> tuple[Tensor, Tensor]:
        """The features of each step, and of what followed each segment."""
        features, following = torch.zeros(rollout.steps, body.features), torch.zeros(rollout.segments, body.features)
        keys = list(zip(rollout.simulators.tolist(), rollout.agents.tolist(), rollout.episodes.tolist(), strict=True))
        for segment in np.lexsort((rollout.sequences.numpy(),)).tolist():
            memory = self.memories.pop(keys[segment], torch.zeros(1, body.memory_size))
            for row in rows_of(rollout)[segment]:
                features[row], memory = body([rollout.observations[0][row : row + 1]], memory)
            following[segment], _ = body([rollout.next_observations[0][segment : segment + 1]], memory)
            if rollout.endings[segment] == SegmentEnd.CUT:
                self.memories[keys[segment]] = memory
        return features, following


@pytest.mark.parametrize("length", [1, 3, 7])
@torch.no_grad()
def test_values_equal_a_plain_loop_over_steps_across_rounds(length: int) -> None:
    run = make_training(length=length)
    ppo, life = ppo_of(run), Life()
    critic = ppo.model.critic
    cuts = 0

    for _ in range(4):  # without updates: the weights stay, the memories must, too
        rollout = collect(run)
        prepared = ppo.prepare(rollout)
        features, _ = life.through(rollout, critic.body)
        torch.testing.assert_close(prepared.batch.values, critic.heads(features))
        cuts += int(((rollout.endings == SegmentEnd.CUT) & (rollout.sequences == 0)).sum())

    assert cuts > 0, "no episode went through two rounds: nothing was carried"


@torch.no_grad()
def test_what_follows_is_valued_with_the_memory_after_the_segment() -> None:
    run = make_training()
    ppo = ppo_of(run)
    rollout = collect(run)
    pool = ppo.actor.encode(rollout.pool())

    (_, bootstrap, _), _ = ppo.estimate(rollout, pool)

    _, following = Life().through(rollout, ppo.model.critic.body)
    torch.testing.assert_close(bootstrap, ppo.model.critic.heads(following))


@pytest.mark.parametrize("shared_critic", [False, True])
@torch.no_grad()
def test_predictions_in_sequences_equal_a_plain_loop(shared_critic: bool) -> None:
    run = make_training(shared_critic=shared_critic)
    run.run(2)
    ppo, rollout = ppo_of(run), collect(run)
    prepared = ppo.prepare(rollout)
    (minibatch,) = prepared.batch.minibatches(10_000, torch.Generator(), prepared.recurrence)
    assert minibatch.real is not None

    prediction = ppo.model.evaluate(
        minibatch.encoded,
        minibatch.continuous,
        minibatch.discrete,
        minibatch.masks,
        actor_memory=minibatch.actor_memory,
        critic_memory=minibatch.critic_memory,
        length=minibatch.length,
    )

    # The actor's memory is the one that acted: each step alone, from what was kept before it.
    assert rollout.memories is not None
    head, _ = ppo.actor(ppo.actor.encode(rollout.observations), rollout.memories)
    log_prob = head.log_softmax(1).gather(1, rollout.discrete).squeeze(1)
    torch.testing.assert_close(prediction.joint.log_prob[minibatch.real], log_prob[minibatch.steps])
    torch.testing.assert_close(log_prob, rollout.log_probs.sum(1))
    torch.testing.assert_close(prediction.values[minibatch.real], prepared.batch.values[minibatch.steps])


@pytest.mark.parametrize("shared_critic", [False, True])
def test_ratio_is_one_on_the_first_minibatch(shared_critic: bool) -> None:
    run = make_training(shared_critic=shared_critic, batch_size=40, steps=40, num_epoch=1, length=4)
    run.run(3)  # weights have moved, and episodes go on from a round before

    run.run(1)

    assert run.metrics["Policy/Approximate KL"] < 1e-9
    assert run.metrics["Policy/Clip Fraction"] == 0.0


def test_batch_size_is_rounded_down_to_whole_sequences() -> None:
    ppo, rollout = small_ppo(length=4), random_rollout(SPEC, [9, 4, 3, 8], np.random.default_rng(1), memory_size=6)
    prepared = ppo.prepare(rollout)

    parts = list(prepared.batch.minibatches(10, torch.Generator(), prepared.recurrence))

    # 3 + 1 + 1 + 2 = 7 sequences of 4; 10 // 4 = 2 of them in a minibatch, and one is left out.
    assert [len(part.advantage) for part in parts] == [8, 8, 8]
    assert all(part.length == 4 and len(part.steps) == int(part.real.sum()) for part in parts if part.real is not None)


def test_minibatches_keep_sequences_and_their_memories_together() -> None:
    ppo, rollout = small_ppo(length=4), random_rollout(SPEC, [9, 4, 3, 8], np.random.default_rng(1), memory_size=6)
    prepared = ppo.prepare(rollout)
    sequences = sequences_of(rollout.lengths, 4)
    assert rollout.memories is not None

    seen = []
    for part in prepared.batch.minibatches(8, torch.Generator().manual_seed(3), prepared.recurrence):
        assert part.actor_memory is not None
        for index in range(2):
            rows = part.log_prob[4 * index : 4 * index + 4]
            number = int((prepared.batch.log_prob[sequences.rows] == rows).all(1).nonzero()[0])
            assert torch.equal(part.actor_memory[index], rollout.memories[sequences.first[number]])
            seen.append(number)

    assert len({*seen}) == 6
    assert seen != sorted(seen)


SPEC = make_spec(observations=(3,), continuous=1, branches=(2,))


def small_ppo(*, length: int, seed: int = 1, **overrides: Any) -> PPO:
    network = {"hidden_units": 8, "num_layers": 1, "memory": {"memory_size": 6, "sequence_length": length}}
    return PPO(make_config(network=network, **overrides), SPEC, CPU, seed)


@pytest.mark.parametrize("clip_value_loss", [False, True])
def test_padding_changes_neither_losses_nor_gradients(clip_value_loss: bool) -> None:
    rollout = random_rollout(SPEC, [3] * 8, np.random.default_rng(1), memory_size=6)
    outcomes = []
    for length in (3, 5):  # without padding, and with two rows of it in every sequence
        ppo = small_ppo(length=length, clip_value_loss=clip_value_loss)
        with torch.no_grad():
            prepared = ppo.prepare(rollout)
            (minibatch,) = prepared.batch.minibatches(10_000, torch.Generator().manual_seed(1), prepared.recurrence)
            if length == 5:
                assert minibatch.real is not None
                assert int((~minibatch.real).sum()) == 16
                minibatch = spoil_padding(minibatch)
            terms, _ = ppo.differentiate(prepared, minibatch, ppo.rates(0))
        outcomes.append((terms, ppo.optimizer.gradient.clone()))

    (terms, gradient), (padded_terms, padded_gradient) = outcomes
    assert float(gradient.norm()) > 0.0
    torch.testing.assert_close(padded_gradient, gradient, rtol=1e-4, atol=1e-6)
    for name, value in terms.items():
        torch.testing.assert_close(padded_terms[name], value)


def spoil_padding(minibatch: Batch) -> Batch:
    """The minibatch with nonsense where there is no step. What the network sees stays finite; targets need not be."""
    assert minibatch.real is not None
    padding = ~minibatch.real
    encoded = [part.clone() for part in minibatch.encoded]
    for part in encoded:
        part[padding] = 1e3
    advantage, returns = minibatch.advantage.clone(), minibatch.returns.clone()
    advantage[padding], returns[padding] = torch.nan, torch.nan
    return replace(minibatch, encoded=encoded, advantage=advantage, returns=returns)


def test_an_update_that_diverged_forgets_nothing() -> None:
    run = make_training()
    run.run(1)
    ppo, rollout = ppo_of(run), collect(run)
    before = ppo.memories.state_dict()
    rollout.rewards[3] = torch.inf

    with pytest.raises(Diverged):
        ppo.update(rollout, 0)

    after = ppo.memories.state_dict()
    assert len(before["values"])
    assert torch.equal(before["agents"], after["agents"])
    assert torch.equal(before["values"], after["values"])


@pytest.mark.parametrize(
    ("memory", "shared_critic"), [(None, False), pytest.param(CUE, False, marks=pytest.mark.long), (CUE, True)]
)
def test_a_cue_is_remembered_with_a_memory_only(memory: dict[str, int] | None, shared_critic: bool) -> None:
    game = Recall(agents=32)
    network = {"hidden_units": 16, "num_layers": 1, "memory": memory}
    hyper: dict[str, Any] = {"num_epoch": 4, "batch_size": 128, "buffer_size": 512, "learning_rate": 1e-2}

    scores = training(game, network=network, shared_critic=shared_critic, **hyper).run(14)

    score = float(np.mean(scores[-3:]))
    assert (score > 0.95) if memory else (0.35 < score < 0.65)
