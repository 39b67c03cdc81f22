"""The gradient of SAC's loss by hand, where actor and critics are MLPs.

For a fixed noise (the reparameterised gradient), with `u = mean + sigma * noise` and `a = tanh(u)`:

    d a / d u = 1 - a^2        d log pi / d u = 2 a        d u / d mean = 1        d u / d log sigma = sigma * noise

and for a branch's logits, with `x_k = alpha log p_k - q_k`: `d sum_k p_k x_k / d logit_k = p_k (x_k - sum_j p_j x_j)`.
`log_sigma` is limited to [-20, 2]; where the limit acts its derivative is 0. Dimensions as in `algorithms.sac`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worker.learning.algorithms.off_policy import Batch
from worker.learning.algorithms.sac_stats import SACTerms
from worker.learning.fast import dense
from worker.learning.fast.critics import StackedCritics
from worker.learning.functional.distributions import Branch
from worker.learning.functional.soft_values import chosen_q, expected_q, joined_probabilities, spread
from worker.learning.functional.squashed import Squashed
from worker.learning.networks.soft_actor_critic import SoftActorCritic


def differentiate(
    model: SoftActorCritic, batch: Batch, noise: Float[Tensor, "R C"] | None, following: Float[Tensor, "R S"]
) -> SACTerms:
    """Write the gradient of SAC's loss on a batch to the weights' `grad`; return its terms.

    `following`: the target's values behind each step. The gradient of the coefficients is written, not added, too.
    """
    actor, critics = model.actor, model.critics
    assert isinstance(critics, StackedCritics)
    assert model.log_coefficients.grad is not None
    coefficients, signals = model.log_coefficients.detach().exp(), batch.rewards.shape[1]
    features, passed = dense.forward(actor.body.dense, batch.encoded[0])
    actions = model.actions(actor.head(features), batch.masks, noise)
    predicted = critics.q_values(batch.encoded, batch.continuous, batch.length)
    considered = predicted.passed
    if actions.squashed is not None:
        considered = critics.pass_of(predicted, actions.squashed.action)
    q = critics.by_signal(considered.outputs[:2])
    expected = expected_q(q, actions.branches)  # (2, R, S)
    bonus = (actions.entropies @ (coefficients * model.shares)).unsqueeze(1)  # (R, 1)

    q_error = chosen_q(predicted.q, batch.choices) - torch.addcmul(batch.rewards, batch.discounts, following)
    v_error = predicted.v - (torch.minimum(expected[0], expected[1]) + bonus)
    part = batch.weight * (1.0 / signals)
    by_q, by_v = q_error * part, v_error * part
    critics.backward(predicted.passed, chosen_q_gradient(by_q, batch.choices, predicted.q.shape[3]), by_v)

    by_columns: list[Tensor] = []
    if actions.squashed is not None:
        by_q1 = expected_q_gradient(actions.branches, batch.weight, signals).neg_()
        by_action = critics.by_action(considered, by_q1)
        by_columns += squashed_gradient(actions.squashed, by_action, batch.weight * coefficients[-1])
    if actions.branches:
        mean_q, share = q[0].mean(1), batch.weight * (1.0 / len(actions.branches))
        for index, (branch, (start, stop)) in enumerate(zip(actions.branches, model.bounds, strict=True)):
            by_logits = branch_objective_gradient(branch, mean_q[:, start:stop], coefficients[index])
            by_columns.append(by_logits.mul_(share))
    by_head = torch.cat(by_columns, 1)
    dense.linear_backward(actor.head, features, by_head)
    dense.backward(actor.body.dense, passed, by_head @ actor.head.weight)

    entropies = (actions.entropies * batch.weight).sum(0)  # (E,)
    torch.sub(entropies, model.target_entropies, out=model.log_coefficients.grad)  # by log alpha
    return SACTerms(
        policy_loss=torch.sum((expected[0].mean(1, keepdim=True) + bonus) * batch.weight).neg_(),
        value_loss=torch.sum(v_error * by_v) * 0.5,
        q_losses=torch.sum(q_error * by_q, (1, 2)) * 0.5,
        values=torch.sum(predicted.v * batch.weight, 0),
        entropies=entropies,
        coefficients=coefficients,
        log_sigma=None if actions.squashed is None else actions.squashed.log_sigma.mean(),
    )


def expected_q_gradient(branches: list[Branch], weight: Float[Tensor, "B 1"], signals: int) -> Float[Tensor, "B SK"]:
    """Return the derivative, by one critic's outputs, of `expected_q` in the mean over signals and over weighted rows.

    The outputs are signal after signal.
    """
    if not branches:
        return (weight * (1.0 / signals)).expand(-1, signals).clone()
    p = joined_probabilities(branches) * (weight * (1.0 / (len(branches) * signals)))
    return p if signals == 1 else p.repeat(1, signals)


def chosen_q_gradient(
    by_chosen: Float[Tensor, "nets B S"], chosen: Int[Tensor, "B D"], outputs: int
) -> Float[Tensor, "nets B S K"]:
    """Carry the derivative by `chosen_q` back to the critics' `outputs` for each signal."""
    by_chosen = by_chosen.unsqueeze(3)
    branches = chosen.shape[1]
    if not branches:
        return by_chosen
    by_q = by_chosen.new_zeros((*by_chosen.shape[:3], outputs))
    index = spread(chosen, by_q)
    return by_q.scatter_(3, index, by_chosen.mul(1.0 / branches).expand(index.shape))


def branch_objective_gradient(
    branch: Branch, q: Float[Tensor, "B choices"], coefficient: Float[Tensor, ""]
) -> Float[Tensor, "B choices"]:
    """Return the derivative of `sum_k p_k (alpha log p_k - q_k)` by the logits: `p_k (x_k - sum_j p_j x_j)`.

    `x` is the bracket. The derivative of `log p` itself drops out, as the probabilities sum to 1. A forbidden choice
    has a probability of exactly 0 and gets none.
    """
    x = branch.log_p.mul(coefficient).sub_(q)
    return x.sub_((branch.p * x).sum(1, keepdim=True)).mul_(branch.p)


def squashed_gradient(
    squashed: Squashed, by_action: Float[Tensor, "B C"], by_log_prob: Float[Tensor, "B 1"]
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """Carry derivatives of a loss by action and log-density back to `mean` and to the network's `log_sigma`."""
    action = squashed.action
    # d loss / d u = by_action (1 - a^2) + by_log_prob 2 a
    by_mean = torch.addcmul(by_action, action, action * by_action, value=-1.0).addcmul_(action, by_log_prob, value=2.0)
    by_log_sigma = (by_mean * squashed.step).sub_(by_log_prob).mul_(squashed.inside)
    return by_mean, by_log_sigma
