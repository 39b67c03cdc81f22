"""The data of an update: the columns of a rollout on the learner's device, and shuffled minibatches of them.

Minibatches are of single steps or, for networks with a memory, of whole sequences, padded at their end. Padded rows are
marked (`real` is false) and never count.

Dimensions: `N` steps, `Q` sequences of `L` steps each, then `N = Q * L` rows in a minibatch; `W` width of a memory;
others as in `worker.learning.functional`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from worker.experience.rollout import Rollout
from worker.experience.transitions import Sequences, Transitions
from worker.learning.data_parallel import least
from worker.learning.functional.returns import beyond_termination, generalized_advantages, normalized
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.episodes import segment_sums
from worker.learning.rewards.signals import SignalSet

GREATEST_WEIGHT = 100.0
"""Greatest weight of a step in the decoupled objective; that of Hilton et al.'s program (`imp_samp_max`)."""


class Estimates(NamedTuple):
    """The critic's outputs for a rollout before the update."""

    values: Float[Tensor, "N S"]
    bootstrap: Float[Tensor, "B S"]
    """The value of what follows each segment."""
    baselines: Float[Tensor, "N S"] | None = None
    """The baseline of the advantages; None: the values."""


class Correction(NamedTuple):
    """How the steps of older policies count in an update; by default as those of the policy that is updated."""

    importance: Float[Tensor, " N"] | None = None
    """V-trace's `rho` of each step; None: 1 everywhere."""
    proximal: Float[Tensor, " N"] | None = None
    """Log-probability of each action by the policy before the update, around which the decoupled objective clips;
    None: the clip is around the policy that acted.
    """
    fresh: Bool[Tensor, " N"] | None = None
    """The steps that are learned from, on the CPU; None: all."""


class Recurrence(NamedTuple):
    """A rollout in sequences, and the memories of the networks before each."""

    sequences: Sequences
    """On the CPU."""
    actor_memory: Float[Tensor, "Q W"]
    critic_memory: Float[Tensor, "Q W"]

    def select(self, which: Int[Tensor, " K"]) -> "Recurrence":
        """Take some sequences; `which` is on the CPU."""
        chosen = which.to(self.actor_memory.device)
        return Recurrence(self.sequences.select(which), self.actor_memory[chosen], self.critic_memory[chosen])


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps with their targets; row `i` of every column belongs to the same step. A minibatch is one, too."""

    encoded: Encoded
    """Observations, normalised by the statistics that acted; those that only the critic sees come last."""
    continuous: Float[Tensor, "N C"]
    discrete: Int[Tensor, "N D"]
    masks: Bool[Tensor, "N M"] | None
    """None when every choice was allowed at every step."""
    log_prob: Float[Tensor, " N"]
    """Joint log-probability of the action by the policy around which the ratio is clipped: the one that acted; in the
    decoupled objective, the one before the update.
    """
    advantage: Float[Tensor, " N"]
    """Mean over signals, normalised over the steps that are learned from; with V-trace, weighted by its `rho`. In the
    decoupled objective it is then multiplied by the step's weight.
    """
    values: Float[Tensor, "N S"]
    """The critic's values before the update."""
    returns: Float[Tensor, "N S"]
    steps: Int[Tensor, " K"]
    """Rows of the rollout that the batch has, without padding: reward signals learn from them."""
    real: Bool[Tensor, " N"] | None = None
    """Whether a row is a step, and no padding; None when all are."""
    actor_memory: Float[Tensor, "Q W"] | None = None
    """Before each sequence; None without a memory."""
    critic_memory: Float[Tensor, "Q W"] | None = None
    length: int = 1
    """`L`."""

    def minibatches(
        self, size: int, generator: torch.Generator, recurrence: Recurrence | None = None
    ) -> Iterator["Batch"]:
        """Yield full minibatches of shuffled steps, or of shuffled sequences; a remainder that fills none is left out.

        `size` counts steps, and is rounded down to whole sequences. A batch smaller than that is one minibatch. The
        order is drawn on the CPU, so it is the same on every device. All ranks have as many minibatches: as the
        one with the fewest.
        """
        device = self.steps.device
        if recurrence is None:
            rows = torch.randperm(len(self.steps), generator=generator).to(device)
            # All narrow columns are permuted at once: a minibatch is then a view, and costs nothing. Pictures are not.
            wide = {place: column for place, column in enumerate(self.encoded) if column.dim() > 2}
            narrow = [column for place, column in enumerate(self.encoded) if place not in wide]
            shuffled = replace(self, encoded=narrow).select(rows)
            for index in range(count_minibatches(len(rows), size)):
                part = slice(index * size, (index + 1) * size)
                minibatch = shuffled.map(itemgetter(part))
                for place, column in wide.items():
                    minibatch.encoded.insert(place, column.index_select(0, rows[part]))
                yield minibatch
            return
        length = recurrence.sequences.rows.shape[1]
        order = torch.randperm(len(recurrence.sequences.rows), generator=generator)
        size = max(size // length, 1)
        for which in torch.split(order, size)[: count_minibatches(len(order), size)]:
            sequences, actor_memory, critic_memory = recurrence.select(which)
            yield replace(
                self.select(sequences.rows.reshape(-1).to(device)),
                steps=sequences.rows[sequences.mask].to(device),  # found on the CPU: its size is known at once
                real=sequences.mask.reshape(-1).to(device),
                actor_memory=actor_memory,
                critic_memory=critic_memory,
                length=length,
            )

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return what a function makes of each column that has a row for each step."""
        return Batch(
            encoded=[function(column) for column in self.encoded],
            continuous=function(self.continuous),
            discrete=function(self.discrete),
            masks=None if self.masks is None else function(self.masks),
            log_prob=function(self.log_prob),
            advantage=function(self.advantage),
            values=function(self.values),
            returns=function(self.returns),
            steps=function(self.steps),
        )

    def select(self, rows: Int[Tensor, " K"]) -> "Batch":
        """Return these rows, in this order."""
        return self.map(partial(torch.index_select, dim=0, index=rows))


def count_minibatches(rows: int, size: int) -> int:
    """Return how many minibatches of `size` a pass over so many rows has: at least one, and in all ranks as many."""
    return least(max(rows // size, 1))


def batch_with_targets(
    rollout: Rollout,
    transitions: Transitions,
    pool: Encoded,
    estimates: Estimates,
    terminated: Bool[Tensor, " B"],
    signals: SignalSet,
    lambd: float,
    correction: Correction,
) -> tuple[Batch, Float[Tensor, "B S"]]:
    """Return the steps of a rollout with returns and advantages, and the rewards that each segment earned.

    `pool` is all steps, then the segments' successors. The values of the latter count unless `terminated`.
    """
    values, bootstrap, baselines = estimates
    importance, proximal, fresh = correction
    device, masks = values.device, rollout.action_masks
    (earned, rewards), goes_on = signals.observe(rollout, transitions), signals.ignores_termination
    firsts = rollout.firsts[rollout.starts_episode]
    advantages = generalized_advantages(
        rewards,
        values,
        beyond_termination(bootstrap, terminated, values[firsts.to(device)], goes_on),
        rollout.lengths,
        terminated.to(device).unsqueeze(1) & ~goes_on,
        gamma=signals.gamma,
        lambd=lambd,
        importance=importance,
    )
    returns = advantages + values
    weights = importance
    if importance is None:
        alone = advantages if baselines is None else returns - baselines
    else:
        # Without its own rho, since the surrogate's ratio weights a step already. Where rho is 0 it is unknown.
        alone = advantages / importance.clamp(min=1e-20).unsqueeze(1)
        alone = alone if baselines is None else alone + (values - baselines)
    if fresh is not None:
        weights = fresh.to(device, values.dtype) * (1.0 if importance is None else importance)
    advantage = normalized(alone.mean(1), weights=weights)
    log_prob = rollout.log_probs.to(device).sum(1)
    if proximal is not None:
        advantage = advantage * (proximal - log_prob).exp().clamp(max=GREATEST_WEIGHT)
        log_prob = proximal
    batch = Batch(
        encoded=[part[: rollout.steps] for part in pool],
        continuous=rollout.continuous.to(device),
        discrete=transitions.discrete,
        masks=None if masks is None or bool(masks.all()) else masks.to(device),
        log_prob=log_prob,
        advantage=advantage,
        values=values,
        returns=returns,
        steps=transitions.index,
    )
    return batch, segment_sums(earned, rollout)
