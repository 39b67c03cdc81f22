"""The gradient of PPO's loss by hand, for actors and critics that are MLPs.

Every derivative is in closed form: the loss's terms are one line each, and a chain of tiny operations in autograd costs
more than the networks. With `w = 1 / rows`, `r` the ratio, `z = (action - mean) / sigma` and branch probabilities `p`:

    d surrogate / d log_prob = -w r A where the unclipped product is not the larger one, else 0
    d squared error / d V    = 2 w (V - R) / signals
    d log_prob / d mean      = z / sigma                d log_prob / d log_sigma = z^2 - 1
    d log_prob / d logits    = onehot(action) - p       d entropy / d logits = -p (log p + entropy of the branch)
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.ppo_stats import entropies
from worker.learning.fast import dense
from worker.learning.functional.distributions import JointDistribution
from worker.learning.networks.actor_critic import ActorCritic


class Term(NamedTuple):
    """A term of the loss."""

    loss: Float[Tensor, ""]
    gradient: Float[Tensor, "B ..."]
    """d loss / d first argument, in its shape."""


def differentiate(
    model: ActorCritic,
    minibatch: Batch,
    *,
    epsilon: float | Float[Tensor, ""],
    beta: float,
    value_coefficient: float,
    clip_value_loss: bool,
) -> tuple[dict[str, Tensor], Float[Tensor, " B"]]:
    """Write the gradient of PPO's loss on a minibatch without padding to the weights' `grad`.

    Return its terms by name, and the log-ratio of each action.
    """
    actor, critic = model.actor, model.critic
    features, passed = dense.forward(actor.body.dense, minibatch.encoded[0])
    value_features, value_passed = features, passed
    if critic.body is not None:
        (inputs,) = model.privileged.joined(minibatch.encoded)
        value_features, value_passed = dense.forward(critic.body.dense, inputs)
    joint = actor.joint(actor.head(features), minibatch.continuous, minibatch.discrete, minibatch.masks)
    values = critic.heads(value_features)
    log_ratio = joint.log_prob - minibatch.log_prob
    policy = clipped_surrogate(log_ratio, minibatch.advantage, epsilon)
    value = (
        clipped_value_loss(values, minibatch.values, minibatch.returns, epsilon)
        if clip_value_loss
        else squared_error(values, minibatch.returns)
    )
    by_head, by_log_sigma = joint_gradient(joint, policy.gradient, -beta / len(values))
    by_values = value.gradient.mul_(value_coefficient)
    dense.linear_backward(actor.head, features, by_head)
    if actor.log_sigma.grad is not None:
        actor.log_sigma.grad.copy_(by_log_sigma)
    dense.linear_backward(critic.heads, value_features, by_values)
    by_features = by_head @ actor.head.weight
    by_value_features = by_values @ critic.heads.weight
    if critic.body is None:
        by_features += by_value_features
    else:
        dense.backward(critic.body.dense, value_passed, by_value_features)
    dense.backward(actor.body.dense, passed, by_features)
    terms = {"policy loss": policy.loss, "value loss": value.loss}
    return {**terms, **entropies(joint, actor.log_sigma, None)}, log_ratio


def clipped_surrogate(
    log_ratio: Float[Tensor, " B"], advantage: Float[Tensor, " B"], epsilon: float | Float[Tensor, ""]
) -> Term:
    """Return `functional.losses.clipped_surrogate` and its derivative."""
    ratio = log_ratio.exp()
    plain = ratio * advantage
    clipped = ratio.clamp_(1.0 - epsilon, 1.0 + epsilon).mul_(advantage)  # type: ignore[arg-type]  # both of one kind
    by_log_ratio = torch.where(plain <= clipped, plain, 0.0)  # d ratio / d log_ratio = ratio
    return _mean(torch.minimum(plain, clipped).neg_(), by_log_ratio.neg_())


def squared_error(values: Float[Tensor, "B S"], returns: Float[Tensor, "B S"]) -> Term:
    """Return `functional.losses.squared_error` and its derivative."""
    error = values - returns
    return _mean(error.square(), error.mul_(2.0))


def clipped_value_loss(
    values: Float[Tensor, "B S"],
    old_values: Float[Tensor, "B S"],
    returns: Float[Tensor, "B S"],
    epsilon: float | Float[Tensor, ""],
) -> Term:
    """Return `functional.losses.clipped_value_loss` and its derivative."""
    error = values - returns
    plain = error.square()
    moved = (values - old_values).clamp_(-epsilon, epsilon)  # type: ignore[arg-type]  # both of one kind
    clipped = moved.add_(old_values).sub_(returns).square_()
    # Inside the clip range both errors are V's, but rounding may make either the larger one: compare the step itself.
    inside = (values - old_values).abs_() <= epsilon
    by_values = torch.where(inside | (plain >= clipped), error, 0.0).mul_(2.0)
    return _mean(torch.maximum(plain, clipped), by_values)


def _mean(terms: Float[Tensor, "B ..."], gradient_of_terms: Float[Tensor, "B ..."]) -> Term:
    return Term(terms.mean(), gradient_of_terms.mul_(1.0 / terms.numel()))


def joint_gradient(
    joint: JointDistribution, by_log_prob: Float[Tensor, " B"], by_entropy: float
) -> tuple[Float[Tensor, "B H"], Float[Tensor, " C"]]:
    """Return the derivatives by the head and by `log_sigma`, given those by log-probability and entropy of each row."""
    row = by_log_prob.unsqueeze(1)  # (B, 1)
    parts: list[Tensor] = []
    by_log_sigma = joint.inverse_sigma  # stays so only where it is empty
    if joint.z.shape[1]:
        pull = row * joint.z
        parts.append(pull * joint.inverse_sigma)
        by_log_sigma = torch.sum(pull * joint.z, 0).sub_(by_log_prob.sum()).add_(by_entropy * len(row))
    start = 0
    for index, (log_p, p, entropy) in enumerate(joint.branches):
        by_logits = (log_p + entropy.unsqueeze(1)).mul_(by_entropy).add_(row).mul_(p).neg_()
        by_logits.scatter_add_(1, joint.discrete[:, index : index + 1], row)
        if joint.masks is not None:
            by_logits *= joint.masks[:, start : start + log_p.shape[1]]
        parts.append(by_logits)
        start += log_p.shape[1]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), by_log_sigma
