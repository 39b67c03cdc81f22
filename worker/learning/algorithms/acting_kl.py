"""KL(policy that acted || policy before the update) of trainers with a replay buffer: shows live that the collectors,
which act in numpy or ONNX Runtime, have the policy of the learner, which computes in torch.

The learner's log-probabilities of recorded actions are those of the head's description (`ludus.collector.heads`), at
the sample that gave the recorded value. Columns at the end of their range do not tell that sample and are left out; so
are whole rows of them. Where two choices are as good as each other but for rounding, either may be the best one of a
head that explores: the value of the chosen one is moved by `ROUNDING` at most towards the log-probability that the
collector sent.
"""

import torch
from torch import Tensor

from ludus.collector.heads import FORBIDDEN
from worker.experience.rollout import Rollout
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.functional.losses import approximate_kl
from worker.learning.networks.actor import Actor
from worker.learning.networks.head_operations import TORCH

ACTING_INTERVAL = 16
"""Published versions between two measurements: one costs a pass of the actor."""
ROWS = 64
"""Most steps of a measurement."""
END_OF_RANGE = 0.999
"""Size of a recorded action from which float32 does not tell its sample well enough."""
ROUNDING = 1e-5
"""Of the values of choices, as a part of the largest one, or of 1."""
LARGEST_LOG_RATIO = 20.0


@torch.no_grad()
def acting_kl(actor: Actor, rollout: Rollout, version: int, device: torch.device) -> float | None:
    """Return the KL in nats, by k3, over the first steps that this version took; None without one that can be told.

    Log-probabilities that nothing has computed are NaN.
    """
    known = ~rollout.log_probs.isnan().any(1)
    rows = (known & (rollout.versions == version)).nonzero()[:ROWS, 0]
    if not len(rows):
        return None
    memory = None if rollout.memories is None else rollout.memories[rows].to(device)
    head, _ = actor(actor.encode([part[rows].to(device) for part in rollout.observations]), memory)
    acted = rollout.log_probs[rows].to(device)
    layout = actor.layout
    size, columns, parameters = layout.continuous_size, layout.kind.continuous, actor.head_parameters()
    log_ratio, told = head.new_zeros(len(rows)), torch.full((len(rows),), bool(layout.discrete_branches), device=device)
    if columns is not None and size:
        mean, log_sigma = columns.moments(TORCH, head, parameters, size)
        recorded = rollout.continuous[rows].to(device)
        within = recorded.abs() < END_OF_RANGE
        sample = columns.sample(TORCH, recorded.where(within, 0.0))
        log_prob = columns.log_prob(TORCH, sample, log_sigma, (sample - mean) / log_sigma.exp())
        log_ratio += torch.where(within, log_prob - acted[:, :size], 0.0).sum(1)
        told |= within.any(1)
    masks = None if rollout.action_masks is None else rollout.action_masks[rows].to(device)
    values = masked_logits(head[:, layout.logits_start :], masks)
    for branch, (start, stop) in enumerate(branch_bounds(layout.discrete_branches)):
        part, chosen = values[:, start:stop], rollout.discrete[rows, branch].to(device).unsqueeze(1)
        allowed = part.where(part > FORBIDDEN / 2.0, 0.0)
        margin = ROUNDING * allowed.abs().amax(1, keepdim=True).clamp(min=1.0)
        differences = [
            layout.kind.discrete.logits(TORCH, part.scatter_add(1, chosen, shift * margin), parameters)
            .log_softmax(1)
            .gather(1, chosen)[:, 0]
            - acted[:, size + branch]
            for shift in (-1.0, 0.0, 1.0)
        ]
        nearest = torch.stack(differences, 1)
        log_ratio += nearest.gather(1, nearest.abs().argmin(1, keepdim=True))[:, 0]
    kl: Tensor = approximate_kl(log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), told)
    return float(kl) if bool(told.any()) else None
