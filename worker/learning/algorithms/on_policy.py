"""The update that PPO and POCA share: one rollout of the current policy, several passes over shuffled minibatches.

An algorithm computes the targets of a rollout (`prepare`), its minibatches (`minibatches`), and the scalar that is
descended (`loss`). Dimensions as in `worker.learning.functional`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.config.behavior import POCAConfig, PPOConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.experience.transitions import Transitions, sequences_of
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.batch import Batch, Correction
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.numeric_check import OF_ANOTHER_RANK, Diverged, first_infinite
from worker.learning.algorithms.ppo_stats import STALE_SHARE, PolicyCheck
from worker.learning.algorithms.recurrent_critic import CriticMemories
from worker.learning.algorithms.training_state import Changed, TrainingState
from worker.learning.data_parallel import average, least
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.losses import approximate_kl
from worker.learning.functional.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.privileged import PrivilegedInputs
from worker.learning.rewards.episodes import EpisodeReturns, episode_rewards
from worker.learning.rewards.signals import SignalSet, extrinsic_alone

VALUE_COEFFICIENT = 0.5
KL_EXCESS = 1.5
"""How many times `target_kl` ends an update (Stable-Baselines3)."""
RATE_STEP = 1.5
"""Factor by which `desired_kl` changes the learning rate (Rudin et al. 2022, https://arxiv.org/abs/2109.11978)."""
RATE_LIMITS = (1e-5, 1e-2)
"""Between them a learning rate is adapted."""


class Rates(NamedTuple):
    """The scheduled numbers of one update."""

    learning_rate: float
    critic_learning_rate: float | None
    """None where the critic has none of its own."""
    epsilon: float
    beta: float


class Loss(NamedTuple):
    """The objective on one minibatch."""

    objective: Float[Tensor, ""]
    """The scalar that is descended."""
    terms: dict[str, Float[Tensor, ""]]
    """The measured terms, by name; `policy loss`, `value loss` and `entropy` are among them."""
    log_ratio: Float[Tensor, " N"]
    """Of each action: log-probability by the learned policy minus the one by the policy around which it is clipped."""


@dataclass(frozen=True)
class Experience:
    """A rollout with its targets, frozen for all epochs."""

    batch: Batch
    transitions: Transitions
    """The same steps, as reward signals take them."""
    episodes: Float[Tensor, "B S"]
    """Each segment's sum of rewards, after strength; never scaled by `normalize_reward`."""
    fresh: Bool[Tensor, " N"] | None
    """The steps that are learned from, on the CPU; None: all. The others are too old (`max_policy_lag`)."""

    def columns(self) -> list[tuple[str, Tensor]]:
        """Return every column that has to be finite, by name, in the order in which they are computed."""
        batch = self.batch
        return [
            *(("observations", part) for part in batch.encoded),
            ("continuous", batch.continuous),
            ("log-prob", batch.log_prob),
            ("values", batch.values),
            ("returns", batch.returns),
            ("advantage", batch.advantage),
        ]

    def estimates(self) -> dict[str, Tensor]:
        """Return further estimates of the steps before the update, (N, S) each, by the name of the metric."""
        return {}


@runtime_checkable  # by tests, which check every annotation
class Minibatch(Protocol):
    """Some steps of an experience."""

    @property
    def steps(self) -> Int[Tensor, " K"]:
        """Rows of the rollout that it has, without padding."""

    @property
    def real(self) -> Bool[Tensor, " N"] | None:
        """Which of the loss's log-ratios are of steps, and not of padding; None: all are."""


E = TypeVar("E", bound=Experience)
M = TypeVar("M", bound=Minibatch)


class OnPolicy(Algorithm, ABC, Generic[E, M]):
    """Networks, optimizer and reward signals of one behavior."""

    privileged: PrivilegedInputs
    critic_memory_size: int
    """Width of the critic's memory of an agent; 0 without."""
    sums_extrinsic = False
    """Whether the extrinsic reward of whole episodes is a metric of the update."""

    def __init__(
        self,
        config: PPOConfig | POCAConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet | None = None,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior.

        `signals` may be left out where the game's rewards are the only ones; `behavioral_cloning` imitates `expert`.
        """
        memory = config.network_settings.memory
        self.config: Any = config
        self.device, self.version = device, 0
        self.signals = extrinsic_alone(config.reward_signals, device) if signals is None else signals
        self.generator = torch.Generator().manual_seed(seed)
        self.model = self.build_model(spec).to(device)
        self.optimizer = FlatAdam(*self.parameter_groups())
        self._length = 0 if memory is None else memory.sequence_length
        self.memories = CriticMemories(self.critic_memory_size, device)
        self._episodes = EpisodeReturns(len(self.signals))
        is_adaptive = config.hyperparameters.desired_kl is not None
        self._rate_factor = torch.ones((), dtype=torch.float64) if is_adaptive else None
        """By which `desired_kl` has changed the learning rate."""
        self.cloning = cloning_of(config, self.actor, expert, max(self._length, 1), seed)
        self._state = TrainingState(
            {
                "generator": self.generator,
                "model": self.model,
                "optimizer": self.optimizer,
                "signals": self.signals,
                "memories": self.memories,
                "episodes": self._episodes,
                "cloning": self.cloning,
                "rate_factor": self._rate_factor,
            },
            changed=[self.optimizer, *self.signals.changed, self.memories, self.cloning, *self.changed()],
        )

    # Parts that an algorithm defines ----------------------------------------------------------------------------

    @abstractmethod
    def build_model(self, spec: BehaviorSpec) -> nn.Module:
        """Return actor and critic, new; set `actor`, `privileged` and `critic_memory_size`."""

    @abstractmethod
    def prepare(self, rollout: Rollout) -> E:
        """Return the rollout with its targets: values, rewards and advantages by the weights of before."""

    @abstractmethod
    def minibatches(self, experience: E) -> Iterator[M]:
        """Yield the minibatches of all epochs."""

    @abstractmethod
    def loss(self, experience: E, minibatch: M, rates: Rates) -> Loss:
        """Return the objective on one minibatch."""

    def parameter_groups(self) -> list[list[tuple[str, nn.Parameter]]]:
        """Return the parameters, in groups that have a learning rate of their own."""
        return [list(self.model.named_parameters())]

    def changed(self) -> list[Changed]:
        """Return the further parts that an update changes."""
        return []

    def encode(self, observations: list[Tensor]) -> Encoded:
        """Return what networks see of raw observations: the actor's part, then what only the critic sees."""
        return self.actor.encode(observations) + self.privileged.encode(observations)

    def correction(self, rollout: Rollout, pool: Encoded, transitions: Transitions) -> Correction:
        """Return how the steps of older policies count, by `vtrace`, `decoupled_objective` and `max_policy_lag`.

        Both of the former need the log-probability of each action by the policy `pi` before the update. A memory starts
        each sequence as it was when the agent acted, as it does in `loss`. `pool` is all steps, encoded, then what
        followed the segments.
        """
        hyper, current, fresh = self.config.hyperparameters, rollout.versions == self.version, self.fresh(rollout)
        if not (hyper.vtrace or hyper.decoupled_objective) or bool(current.all()):
            return Correction(fresh=fresh)
        encoded, memory, length = [part[: rollout.steps] for part in pool], None, 1
        unpadded: Tensor | slice = slice(None)
        if rollout.memories is not None:
            sequences, length = sequences_of(rollout.lengths, self._length), self._length
            rows = sequences.rows.reshape(-1).to(self.device)
            encoded = [part[rows] for part in encoded]
            memory = rollout.memories[sequences.first].to(self.device)
            unpadded = sequences.mask.reshape(-1).to(self.device)
        head, _ = self.actor(encoded, memory, length=length)
        masks = None if rollout.action_masks is None else rollout.action_masks.to(self.device)
        joint = self.actor.joint(head[unpadded], rollout.continuous.to(self.device), transitions.discrete, masks)
        acted = rollout.log_probs.to(self.device).sum(1)
        # Networks act in numpy and learn in torch: a policy's own steps have the ratio 1, whatever the last bit says.
        proximal = torch.where(current.to(self.device), acted, joint.log_prob)
        return Correction(
            importance=(proximal - acted).exp().clamp(max=1.0) if hyper.vtrace else None,
            proximal=proximal if hyper.decoupled_objective else None,
            fresh=fresh,
        )

    def fresh(self, rollout: Rollout) -> Bool[Tensor, " N"] | None:
        """Return which steps are no older than `max_policy_lag` allows, on the CPU; None if all are.

        With a memory a sequence is learned from as a whole, or not at all. Nothing of a step depends on those before it
        but the memories, so that the rest of a segment is worth what it was.
        """
        limit: int | None = self.config.hyperparameters.max_policy_lag
        if limit is None or bool((fresh := self.version - rollout.versions <= limit).all()):
            return None
        if self._length:
            rows, mask, _ = sequences_of(rollout.lengths, self._length)
            whole = fresh[rows].all(1, keepdim=True).expand_as(mask)  # padding repeats a step of the sequence
            fresh = fresh.clone()
            fresh[rows[mask]] = whole[mask]
        return fresh

    # The update -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Improve the policy on one rollout; `step` is the policy's step, at which the schedules are read.

        Return the measurements, by metric name (`ppo_stats`). Where all steps are too old to be learned from the
        weights and their version stay. Raise `Diverged`, with everything as before, if any value on the way is not
        finite or explodes.
        """
        rates, check = self.rates(step), PolicyCheck()
        actor_rate, critic_rate = rates.learning_rate, rates.critic_learning_rate
        learning_rate = actor_rate if critic_rate is None else (actor_rate, critic_rate)
        hyper, minibatches = self.config.hyperparameters, 0
        own = (rollout.versions == self.version).to(self.device)
        with self._state.undone_if_diverged():
            experience = self.prepare(rollout)
            fresh = experience.fresh
            ages = {"Policy/Lag": float(self.version - rollout.versions.double().mean())}
            if hyper.max_policy_lag is not None:
                ages[STALE_SHARE] = 0.0 if fresh is None else 1.0 - float(fresh.double().mean())
            if not least(1 if fresh is None else int(fresh.sum())):  # of one of the ranks
                earned = self._episodes.add(rollout, experience.episodes.cpu().numpy())
                return {**ages, **episode_rewards(self.signals.names, earned, extrinsic=self.sums_extrinsic)}
            estimates = {name: part.mean() for name, part in experience.estimates().items()}
            for minibatch in self.minibatches(experience):
                terms, log_ratio = self.differentiate(experience, minibatch, rates)
                if not len(check):  # no step of the optimizer lies between acting and this
                    check.add_acting(log_ratio, minibatch.real, own[minibatch.steps])
                if hyper.target_kl is not None:
                    kl = average(approximate_kl(log_ratio, minibatch.real))
                    if float(kl) > KL_EXCESS * hyper.target_kl:  # waits for the device
                        break
                minibatches += 1
                terms["gradient"] = self.optimizer.step(learning_rate, hyper.max_grad_norm)
                if self.signals.learns:
                    terms |= self.signals.update(experience.transitions.select(minibatch.steps))
                check.add_policy({**terms, **estimates}, log_ratio, minibatch.real)
            cloned = {} if self.cloning is None else self.cloning.update(step)
            finite = self.optimizer.all_finite() & self.signals.is_finite()
            measured = check.conclude(experience.batch, self.signals.names, rates.epsilon, finite, experience.episodes)
            if measured is None:
                raise self._diagnosis(experience, check)
        observations = [column[: rollout.steps] for column in experience.transitions.observations]
        for inputs in (self.actor.body, self.privileged):
            inputs.update_normalizer(observations)
        self.version += 1
        if self._rate_factor is not None:
            self._adapt_rate(self._rate_factor, measured.metrics["Policy/Approximate KL"])
        earned = self._episodes.add(rollout, measured.episodes)
        return {
            **measured.metrics,
            "Policy/Learning Rate": actor_rate,
            **({} if critic_rate is None else {"Policy/Critic Learning Rate": critic_rate}),
            "Policy/Epsilon": rates.epsilon,
            "Policy/Beta": rates.beta,
            **ages,
            **({} if hyper.target_kl is None else {"Policy/Minibatches": float(minibatches)}),
            **episode_rewards(self.signals.names, earned, extrinsic=self.sums_extrinsic),
            **cloned,
        }

    def differentiate(self, experience: E, minibatch: M, rates: Rates) -> tuple[dict[str, Tensor], Tensor]:
        """Write the gradient of `loss` on one minibatch to the weights' `grad`; return its terms and log-ratios."""
        self.optimizer.zero_gradient()
        with torch.enable_grad():
            loss = self.loss(experience, minibatch, rates)
            torch.autograd.backward([loss.objective])
        return {name: term.detach() for name, term in loss.terms.items()}, loss.log_ratio.detach()

    def reconfigure(self, config: Any) -> None:
        """Go on with another configuration from the next update on; see `Algorithm`."""
        self.config = config
        if self.cloning is not None:
            self.cloning.set_learning_rate(config.hyperparameters.learning_rate)

    def rates(self, step: int) -> Rates:
        """Return the rates of an update at `step`."""
        hyper, steps = self.config.hyperparameters, self.config.max_steps
        kind, critic_rate = hyper.learning_rate_schedule, getattr(hyper, "critic_learning_rate", None)  # PPO's own key
        factor = 1.0 if self._rate_factor is None else float(self._rate_factor)
        return Rates(
            Schedule(kind, hyper.learning_rate, LEARNING_RATE_FLOOR, steps).at(step) * factor,
            None if critic_rate is None else Schedule(kind, critic_rate, LEARNING_RATE_FLOOR, steps).at(step) * factor,
            Schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_FLOOR, steps).at(step),
            Schedule(hyper.beta_schedule, hyper.beta, BETA_FLOOR, steps).at(step),
        )

    def round_steps(self) -> int:
        """Return how many agent steps an update learns from."""
        steps: int = self.config.hyperparameters.buffer_size
        return steps

    def state_dict(self) -> State:
        """Return everything that the next update depends on. Tensors are copies."""
        return {"version": self.version, **self._state.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._state.load_state_dict(state)
        self.version = state["version"]

    def _adapt_rate(self, factor: Tensor, kl: float) -> None:
        """Change the learning rate by how far an update has moved the policy, `kl` nats."""
        hyper = self.config.hyperparameters
        if kl > 2.0 * hyper.desired_kl:
            factor /= RATE_STEP
        elif kl < 0.5 * hyper.desired_kl:
            factor *= RATE_STEP
        factor.clamp_(*(limit / hyper.learning_rate for limit in RATE_LIMITS))

    def _diagnosis(self, experience: E, check: PolicyCheck) -> Diverged:
        """Return an error that names the first wrong term."""
        invalid_signal = self.signals.invalid_signal()
        return (
            first_infinite(experience.columns())
            or check.diagnosis()
            or first_infinite((f"weights of {name}", weight) for name, weight in self.model.named_parameters())
            or (None if invalid_signal is None else Diverged(f"weights of {invalid_signal}", len(check) - 1))
            or Diverged(OF_ANOTHER_RANK if bool(self.optimizer.all_finite()) else "optimizer", len(check) - 1)
        )
