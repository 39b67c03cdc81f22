"""Makers for tests of off-policy algorithms: learners, rounds of experience, SAC's objective as the paper has it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions.transforms import TanhTransform

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import SACConfig
from ludus.config.plugins.crossq import CrossQConfig
from ludus.config.plugins.dqn import DQNConfig
from ludus.config.plugins.td3 import TD3Config
from ludus.config.plugins.tqc import TQCConfig
from ludus.config.trainer import OffPolicyConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_rollout, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.algorithms.off_policy import Batch
from worker.learning.algorithms.sac import SAC
from worker.learning.build import Demonstrations, build_signals
from worker.learning.fast.critics import StackedCritics
from worker.learning.functional.distributions import masked_logits
from worker.learning.networks.soft_actor_critic import ModularCritics
from worker.learning.plugins.crossq import CrossQ
from worker.learning.plugins.dqn.algorithm import DQN
from worker.learning.plugins.td3 import TD3
from worker.learning.plugins.tqc import TQC
from worker.learning.rewards.signals import SignalSet

CPU = torch.device("cpu")
T = TypeVar("T")
SPACES = [(2, ()), (0, (3,)), (0, (3, 2)), (2, (3, 2))]
"""Columns and branches."""


def _section(
    trainer: str, gamma: float, network: dict[str, Any] | None, signals: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "trainer_type": trainer,
        "hyperparameters": {"batch_size": 16, "buffer_size": 500, "steps_per_update": 4.0, "learning_rate": 3e-3},
        "network_settings": {"hidden_units": 16, "num_layers": 2, **(network or {})},
        "reward_signals": signals or {"extrinsic": {"gamma": gamma}},
    }


def make_sac_config(
    *,
    network: dict[str, Any] | None = None,
    signals: dict[str, Any] | None = None,
    max_steps: int = 100_000,
    cloning: dict[str, Any] | None = None,
    **hyper: Any,
) -> SACConfig:
    """A small network, and `hyper`parameters that let every round learn."""
    section = _section("sac", 0.9, network, signals)
    section["hyperparameters"] |= hyper
    return SACConfig.model_validate({**section, "max_steps": max_steps, "behavioral_cloning": cloning})


def make_dqn_config(
    *, network: dict[str, Any] | None = None, signals: dict[str, Any] | None = None, max_steps: int = 1000, **hyper: Any
) -> DQNConfig:
    """A small network, and `hyper`parameters that let every round learn."""
    section = _section("dqn", 0.5, network, signals)
    section["hyperparameters"] |= hyper
    return DQNConfig.model_validate({**section, "max_steps": max_steps})


def make_sac(
    spec: BehaviorSpec | None = None,
    config: SACConfig | None = None,
    *,
    seed: int = 1,
    expert: Any = None,
    **hyper: Any,
) -> SAC:
    """A learner of a behavior that sees two vectors and has two columns, unless another one is given."""
    spec = make_spec(observations=(3, 2), continuous=2) if spec is None else spec
    config = make_sac_config(**hyper) if config is None else config
    return SAC(config, spec, CPU, seed, _signals(config, spec, seed), expert)


def make_dqn(spec: BehaviorSpec | None = None, config: DQNConfig | None = None, *, seed: int = 1, **hyper: Any) -> DQN:
    """A learner of a behavior that sees a number and has a branch of three choices, unless another one is given."""
    spec = make_spec(observations=(1,), branches=(3,)) if spec is None else spec
    config = make_dqn_config(**hyper) if config is None else config
    return DQN(config, spec, CPU, seed, _signals(config, spec, seed))


def make_recurrent_dqn(spec: BehaviorSpec, *, network: dict[str, Any] | None = None, **options: Any) -> DQN:
    """As `make_dqn`, with a memory and all extensions."""
    memory = {"memory": {"sequence_length": 4, "memory_size": 6}}
    extensions = {"dueling": True, "n_step": 2, "prioritized": True, "burn_in": 1}
    return make_dqn(spec, network={**(network or {}), **memory}, **extensions, **options)


def make_td3(spec: BehaviorSpec | None = None, **options: Any) -> TD3:
    """A learner of a behavior that sees a number and has a column, unless another one is given."""
    return _made(TD3, TD3Config, spec, **options)


def make_tqc(spec: BehaviorSpec | None = None, **options: Any) -> TQC:
    """As `make_td3`."""
    return _made(TQC, TQCConfig, spec, **options)


def make_crossq(spec: BehaviorSpec | None = None, **options: Any) -> CrossQ:
    """As `make_td3`."""
    return _made(CrossQ, CrossQConfig, spec, **{"critic_hidden_units": 16, **options})


def _made(
    trainer: type[T],
    kind: type[OffPolicyConfig],
    spec: BehaviorSpec | None,
    *,
    network: dict[str, Any] | None = None,
    signals: dict[str, Any] | None = None,
    seed: int = 1,
    **hyper: Any,
) -> T:
    spec = make_spec(observations=(1,), continuous=1) if spec is None else spec
    section = _section(kind.model_fields["trainer_type"].default, 0.5, network, signals)
    section["hyperparameters"] |= hyper
    config = kind.model_validate(section)
    return trainer(config, spec, CPU, seed, _signals(config, spec, seed))


def alike_batch(rows: int, **changes: object) -> Batch:
    """Rows that saw 0, then 1, and did 0.5; all were rewarded with 1, and gamma is 0.5."""
    batch = Batch(
        encoded=[torch.zeros(rows, 1)],
        following=[torch.ones(rows, 1)],
        continuous=torch.full((rows, 1), 0.5),
        choices=torch.zeros(rows, 0, dtype=torch.int64),
        masks=None,
        memory=None,
        length=1,
        rewards=torch.ones(rows, 1),
        discounts=torch.full((rows, 1), 0.5),
        terminated=torch.zeros(rows, dtype=torch.bool),
        weight=torch.full((rows, 1), 1.0 / rows),
    )
    return batch._replace(**changes)


def _signals(config: OffPolicyConfig, spec: BehaviorSpec, seed: int) -> SignalSet:
    generator = torch.Generator().manual_seed(seed + 1000)
    return build_signals(config.reward_signals, spec, CPU, generator, Demonstrations({}))


def random_round(
    spec: BehaviorSpec, rng: np.random.Generator, *, lengths: Sequence[int] = (7, 1, 8), **overrides: Any
) -> Rollout:
    """Random steps, with continuous actions in (-1, 1) as a squashed policy has them."""
    actions = np.tanh(rng.normal(size=(sum(lengths), spec.actions.continuous_size)))
    return random_rollout(spec, lengths, rng, **{"continuous": actions, **overrides})


def train(sac: SAC, spec: BehaviorSpec, rng: np.random.Generator, rounds: int, **overrides: Any) -> dict[str, float]:
    """Learn from so many random rounds; return the last metrics."""
    metrics: dict[str, float] = {}
    for _ in range(rounds):
        rollout = random_round(spec, rng, episodes=[sac.experience.step] * 3, **overrides)
        metrics = dict(sac.update(rollout, sac.experience.step + rollout.steps) or metrics)
    return metrics


def q_values(sac: SAC, net: int, batch: Batch, continuous: Tensor) -> Tensor:
    """What a Q network says, (R, S, K), differentiable."""
    critics, signals = sac.model.critics, len(sac.signals)
    if isinstance(critics, StackedCritics):
        outputs = _dense(critics, net, torch.cat([batch.encoded[0], continuous], 1))
    else:
        network: Any = critics.q[net]
        extra = continuous if sac.model.columns else None
        outputs = network.heads(network.body(batch.encoded, length=batch.length, extra=extra)[0])
    return outputs.view(len(outputs), signals, -1)


def values(sac: SAC, batch: Batch) -> Tensor:
    """What V says, (R, S), differentiable."""
    critics = sac.model.critics
    if isinstance(critics, ModularCritics):
        return critics.v.heads(critics.v.body(batch.encoded, length=batch.length)[0])
    encoded = batch.encoded[0]
    outputs = _dense(critics, 2, torch.cat([encoded, encoded.new_zeros(len(encoded), sac.model.columns)], 1))
    return outputs.view(len(outputs), len(sac.signals), -1)[:, :, 0]


def _dense(critics: StackedCritics, net: int, inputs: Tensor) -> Tensor:
    *hidden, (weight, bias) = zip(critics.weights, critics.biases, strict=True)
    for hidden_weight, hidden_bias in hidden:
        inputs = torch.nn.functional.silu(inputs @ hidden_weight[net] + hidden_bias[net])
    return inputs @ weight[net] + bias[net]


def reference_gradient(sac: SAC, batch: Batch, noise: Tensor | None) -> Tensor:
    """The gradient of all three losses by all weights, written down from the definitions, differentiated by torch."""
    with torch.enable_grad():
        alpha = sac.model.log_coefficients.detach().exp()
        head, _ = sac.model.actor(batch.encoded, batch.memory, length=batch.length)
        parts = sac.model.actor.parts(head)
        log_prob, action = head.new_zeros(len(head)), head[:, :0]
        if noise is not None:
            unsquashed = parts.means + parts.log_sigmas.exp() * noise
            action = unsquashed.tanh()
            density = torch.distributions.Normal(parts.means, parts.log_sigmas.exp()).log_prob(unsquashed)
            log_prob = (density - TanhTransform().log_abs_det_jacobian(unsquashed, action)).sum(1)
        branches, entropies = [], []
        for start, stop in sac.model.bounds:
            masks = None if batch.masks is None else batch.masks[:, start:stop]
            log_p = masked_logits(parts.logits[:, start:stop], masks).log_softmax(1)
            branches.append(log_p.exp())
            entropies.append(-(log_p.exp() * log_p).sum(1))

        def soft_value(q: Tensor) -> Tensor:  # (R, S, K) -> (R, S)
            value = q[:, :, 0]
            if branches:
                sums = [
                    (q[:, :, start:stop] * p.unsqueeze(1)).sum(2)
                    for (start, stop), p in zip(sac.model.bounds, branches, strict=True)
                ]
                bonus = torch.stack([alpha[index] * entropy for index, entropy in enumerate(entropies)]).mean(0)
                value = torch.stack(sums).mean(0) + bonus.unsqueeze(1)
            return value - (alpha[-1] * log_prob).unsqueeze(1) if noise is not None else value

        def mean(rows: Tensor) -> Tensor:  # over real rows
            return (rows * batch.weight.view(-1, *[1] * (rows.dim() - 1))).sum()

        policy_loss = -mean(soft_value(q_values(sac, 0, batch, action)).mean(1))
        with torch.no_grad():
            nets = [q_values(sac, net, batch, action.detach()) for net in (0, 1)]
            soft = [soft_value(q) for q in nets]
            v_target = torch.minimum(*soft)
            following = sac.model.critics.target_values(batch.encoded, batch.following, batch.length)
            beginning = sac.model.critics.initial_values(sac.model.actor.encode(sac.experience.beginnings)).mean(0)
            over = batch.terminated.unsqueeze(1) & sac.signals.ignores_termination
            following = torch.where(over, beginning, following)
            q_target = batch.rewards + batch.discounts * following
        value_loss = mean((0.5 * (values(sac, batch) - v_target) ** 2).mean(1))
        for net in (0, 1):
            q = q_values(sac, net, batch, batch.continuous)
            if branches:
                picked = [q[torch.arange(len(q)), :, batch.choices[:, index]] for index in range(len(branches))]
                taken = torch.stack(picked).mean(0)
            else:
                taken = q[:, :, 0]
            value_loss = value_loss + mean((0.5 * (taken - q_target) ** 2).mean(1))
        log_alpha = sac.model.log_coefficients
        entropy_loss = log_alpha.new_zeros(())
        for index, (entropy, size) in enumerate(zip(entropies, sac.model.sizes, strict=True)):
            entropy_loss = entropy_loss + mean(log_alpha[index] * (entropy.detach() - 0.2 * np.log(size)))
        if noise is not None:
            entropy_loss = entropy_loss - mean(log_alpha[-1] * (log_prob.detach() - sac.model.columns))
        parameters = sac.optimizer.parameters
        actor = sum(name.startswith("actor.") for name in sac.optimizer.names)
        by_actor = torch.autograd.grad(policy_loss, parameters[:actor], retain_graph=True)
        by_critics = torch.autograd.grad(value_loss, parameters[actor:-1], materialize_grads=True)
        by_alpha = torch.autograd.grad(entropy_loss, parameters[-1:])
    return torch.cat([part.reshape(-1) for part in (*by_actor, *by_critics, *by_alpha)])


def fix_q(dqn: DQN, q: list[float], target: list[float]) -> None:
    """Let both networks give the same values for every observation."""
    network = dqn.model
    with torch.no_grad():
        for heads, values in ((network.heads, q), (network.target_heads, target)):
            heads.advantages.weight.zero_()
            heads.advantages.bias.copy_(torch.tensor(values))
            if heads.values is not None:
                heads.values.weight.zero_()
                heads.values.bias.zero_()


def one_episode(
    rewards: list[float],
    ending: SegmentEnd,
    *,
    discrete: list[list[int]] | None = None,
    masks: np.ndarray | None = None,
    **segment: Any,
) -> Rollout:
    """An episode whose observations are 0, 1, 2, ...; choices are 0 unless given."""
    steps = len(rewards)
    return make_rollout(
        observations=[np.arange(steps, dtype=np.float32)[:, None]],
        next_observations=[np.array([[float(steps)]])],
        rewards=np.array(rewards),
        discrete=np.zeros((steps, 1)) if discrete is None else np.array(discrete),
        log_probs=np.zeros((steps, 1 if discrete is None else len(discrete[0]))),
        masks=masks,
        ending=[ending],
        lengths=[steps],
        **segment,
    )
