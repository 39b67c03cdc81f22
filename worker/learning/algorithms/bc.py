"""Behavioral cloning: supervised learning of demonstrated actions (Pomerleau 1991, "Efficient Training of Artificial
Neural Networks for Autonomous Navigation"), beside another algorithm or alone.

Each gradient step takes a minibatch of demonstrated steps and descends

    mean over columns of E[(action - shown)^2]  -  mean over branches of log p(shown choice)

Details, as in ML-Agents 1.1.0 (`torch_entities/components/bc/module.py`) unless marked:
 1. An Adam of its own over the actor's weights; its rate is the trainer's `learning_rate` x `strength`, and falls to
    1e-10 over `steps` steps of the trainer (0: it stays). From there on nothing is imitated any more.
 2. Beside PPO and POCA, after each of their updates: `num_epoch` (3) passes over shuffled demonstrations, a remainder
    that fills no minibatch left out, each pass no longer than `samples_per_update` steps (0: all). Beside SAC, with
    each of its gradient steps: `num_epoch` minibatches (see f).
 3. Recurrent actors see sequences of the policy's `sequence_length`, and begin each with a memory of zeros.
 4. Observations are normalised with the policy's statistics, to which demonstrations add nothing.

Deviations from ML-Agents, on purpose:
 a. Continuous actions are compared as the environment gets them. ML-Agents compares the policy's sample, of which PPO's
    environment gets `clip(sample, -3, 3) / 3`, with what the environment got: its clone plays at a third of what it was
    shown. Here `sample / 3` (SAC: `tanh(sample)`) is compared; not clipped, because a mean outside would never be
    pulled back in, and what is shown lies inside.
 b. PPO's and POCA's expectation over samples is taken in closed form, `(mean / 3 - shown)^2 + (sigma / 3)^2`: in
    expectation ML-Agents' gradient, by mean and by sigma, without its noise. So imitation makes the policy surer, which
    the mean's error alone would not. SAC's has no closed form: one sample, as in ML-Agents.
 c. Recorded action masks are applied to the logits (ML-Agents: none). Padding of sequences has no weight.
 d. The rate is the one of the current step (ML-Agents applies each one update late), and once it is over there is no
    loss to report instead of a loss of 0.
 e. A `samples_per_update` below `batch_size` makes one smaller minibatch of each pass. ML-Agents divides it by the
    size of a minibatch, gets 0, and takes that for no limit: its passes are over everything that was shown.
 f. Beside SAC ML-Agents makes `num_epoch` whole passes for every single gradient step: with 5,000 demonstrated steps
    117 minibatches. A minibatch each is too few: where SAC's own rewards say nothing its steps, which Adam makes as
    large, undo the imitation (a walk, 500 steps, GAIL that cannot tell: 9 of 16 seeds succeed). With 3 all 16 do.
 g. An update that meets a value that is not finite, or whose loss explodes (`algorithms.guards`), is taken back and
    raises `Diverged`. The last minibatch's loss is measured once more behind the last step, so that this step is judged
    too: however few minibatches an update has, it never leaves weights that exploded.

Dimensions: `R` rows of a minibatch, `N` steps shown, `Q` sequences of `L` steps, others as in
`worker.learning.functional`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

from ludus.protocol.spec import BehaviorSpec
from server.config.config import BehavioralCloningConfig, CloneConfig, ReinforcementConfig
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.guards import Diverged, Trace
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor, Parts
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.optimizer import BETAS, EPSILON
from worker.learning.shares import average, mean_weights, own_rows

LOSS = "Losses/Pretraining Loss"
"""ML-Agents' name of the loss above, the mean over an update's minibatches."""
EPOCHS = 3
"""Passes per update where `num_epoch` is null."""
SAMPLE_RANGE = 3.0
"""The environment gets `clip(sample, -3, 3) / 3` of a policy that is not squashed."""


class Shown(NamedTuple):
    """A minibatch: what was seen and done."""

    encoded: Encoded
    continuous: Float[Tensor, "R C"]
    discrete: Int[Tensor, "R D"]
    masks: Bool[Tensor, "R M"] | None
    weights: Float[Tensor, " R"]
    """Of each row in the mean; 0 for padding."""


def continuous_error(
    parts: Parts, shown: Float[Tensor, "R C"], noise: Float[Tensor, "R C"] | None
) -> Float[Tensor, " R"]:
    """Return the (expected) squared error of the action that the environment gets, mean over columns.

    `noise` is standard normal for a squashed policy's sample; None takes the expectation of one that is not squashed.
    """
    sigma = parts.log_sigmas.exp()
    if noise is None:
        error = (parts.means / SAMPLE_RANGE - shown).square() + (sigma / SAMPLE_RANGE).square()
    else:
        error = ((parts.means + sigma * noise).tanh() - shown).square()
    return error.mean(1)


def cross_entropy(
    logits: Float[Tensor, "R M"],
    shown: Int[Tensor, "R D"],
    masks: Bool[Tensor, "R M"] | None,
    sizes: tuple[int, ...],
) -> Float[Tensor, " R"]:
    """Return minus the log-probability of the shown choices, mean over branches."""
    masked = masked_logits(logits, masks)
    log_probs = [
        masked[:, start:stop].log_softmax(1).gather(1, shown[:, branch : branch + 1])
        for branch, (start, stop) in enumerate(branch_bounds(sizes))
    ]
    return -torch.cat(log_probs, 1).mean(1)


class SideAdam:
    """Adam over parameters that belong to another optimizer (`worker.learning.networks.optimizer.FlatAdam` owns their
    storage).

    It takes gradients from its caller and leaves `grad` alone.
    """

    def __init__(self, named_parameters: Iterator[tuple[str, nn.Parameter]]) -> None:
        named = [(name, parameter) for name, parameter in named_parameters if parameter.numel()]
        self._names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], learning_rate: float) -> None:
        """Descend the mean of the gradients of all processes that share an update."""
        gradients = [gradient.contiguous() for gradient in gradients]
        for gradient in gradients:
            average(gradient)
        adam(
            list(self.parameters),
            gradients,
            self._first,
            self._second,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )

    @torch.no_grad()
    def snapshot(self) -> list[Tensor]:
        """Return a copy of parameters, moments and counts to go back to."""
        return [tensor.clone() for tensor in self._state()]

    @torch.no_grad()
    def restore(self, snapshot: list[Tensor]) -> None:
        """Go back to a snapshot."""
        for tensor, saved in zip(self._state(), snapshot, strict=True):
            tensor.copy_(saved)

    @torch.no_grad()
    def all_finite(self) -> Bool[Tensor, ""]:
        """Return whether every parameter and moment is finite."""
        return torch.stack([tensor.isfinite().all() for tensor in self._state()]).all()

    def state_dict(self) -> dict[str, Any]:
        """Return both moments by parameter name, and the count of steps. The tensors are copies."""
        return {
            "steps": self._steps[0].clone(),
            "first": {name: moment.clone() for name, moment in zip(self._names, self._first, strict=True)},
            "second": {name: moment.clone() for name, moment in zip(self._names, self._second, strict=True)},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned. Parameters are loaded by their modules."""
        for index, name in enumerate(self._names):
            self._steps[index].copy_(state["steps"])
            self._first[index].copy_(state["first"][name])
            self._second[index].copy_(state["second"][name])

    def _state(self) -> list[Tensor]:
        return [*self.parameters, *self._first, *self._second, *self._steps]


class Imitator:
    """Takes gradient steps on minibatches of demonstrations; knows no schedule."""

    def __init__(
        self,
        actor: Actor,
        demonstrations: DemonstrationBuffer,
        *,
        batch_size: int,
        sequence_length: int,
        generator: torch.Generator,
    ) -> None:
        """`sequence_length` counts for recurrent actors only."""
        self.actor = actor
        self.optimizer = SideAdam(actor.named_parameters())
        self._demonstrations = demonstrations
        self._sequences = demonstrations.sequences(sequence_length if actor.memory_size else 1)
        self._length = self._sequences.rows.shape[1]
        self._generator = generator
        self.size = max(min(batch_size, demonstrations.steps) // self._length, 1)
        """Sequences of a minibatch (steps, without memory)."""

    @property
    def sequences(self) -> int:
        """`Q`, how many there are; as many as steps, without memory."""
        return len(self._sequences.rows)

    @property
    def length(self) -> int:
        """`L`; 1 without memory."""
        return self._length

    def shuffled(self) -> Int[Tensor, " Q"]:
        """Return all sequences in a random order."""
        return torch.randperm(self.sequences, generator=self._generator)

    def drawn(self) -> Int[Tensor, " B"]:
        """Return the sequences of one minibatch, drawn uniformly and with replacement."""
        return torch.randint(self.sequences, (self.size,), generator=self._generator)

    def learn(self, chosen: Int[Tensor, " B"], learning_rate: float) -> Float[Tensor, ""]:
        """Take one step on some sequences; return the loss before it."""
        with torch.enable_grad():
            loss = self.loss(chosen)
            gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True)
        zeros = (torch.zeros_like(parameter) for parameter in self.optimizer.parameters)
        self.optimizer.step(
            [nothing if by is None else by for by, nothing in zip(gradients, zeros, strict=True)], learning_rate
        )
        return loss.detach()

    @torch.no_grad()
    def conclude(self, losses: list[Tensor], chosen: Int[Tensor, " B"]) -> float:
        """Return the mean of the losses before each step; `chosen` are the sequences of the last one.

        Raise `Diverged` if one of them, or what the last step left, is not finite or explodes. Where several processes
        share the update, they judge it alike. Waits for the device, once.
        """
        judged = torch.stack([*losses, self.loss(chosen)])
        average(judged)
        trace = Trace()
        for loss in judged:
            trace.add({LOSS: loss})
        sane = trace.is_sane() & self.optimizer.all_finite()
        well, mean = torch.stack([sane.float(), judged[:-1].mean()]).tolist()
        if not well:
            raise self._diagnosis(trace)
        return float(mean)

    def loss(self, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Return the loss on some sequences; that on its own share of them, where processes learn as one."""
        shown = self._shown(own_rows(chosen))
        actor, layout = self.actor, self.actor.layout
        head, _ = actor(shown.encoded, length=self._length)
        parts = actor.parts(head)
        losses = head.new_zeros(len(head))
        if layout.continuous_size:
            losses = losses + continuous_error(parts, shown.continuous, self._noise(len(chosen)))
        if layout.discrete_branches:
            losses = losses + cross_entropy(parts.logits, shown.discrete, shown.masks, layout.discrete_branches)
        return torch.sum(losses * shown.weights)

    def _diagnosis(self, trace: Trace) -> Diverged:
        """Return an error that names what was wrong first; what the last step did is the last minibatch's doing."""
        last = len(trace) - 2
        found = trace.diagnosis()
        if found is None:
            return Diverged("weights by imitation", last)
        return Diverged(LOSS, min(found.minibatch or 0, last), grown=found.grown)

    def _noise(self, sequences: int) -> Float[Tensor, "R C"] | None:
        layout = self.actor.layout
        if not layout.squashed:
            return None
        noise = torch.randn(sequences * self._length, layout.continuous_size, generator=self._generator)
        return own_rows(noise, self._length).to(self._demonstrations.transitions.index.device)

    def _shown(self, chosen: Int[Tensor, " B"]) -> Shown:
        sequences = self._sequences.select(chosen.to(self._sequences.rows.device))
        rows = sequences.rows.reshape(-1)
        shown, masks = self._demonstrations.transitions, self._demonstrations.masks
        return Shown(
            encoded=self.actor.encode(self._demonstrations.observations(rows)),
            continuous=shown.continuous[rows],
            discrete=shown.discrete[rows],
            masks=None if masks is None else masks[rows],
            weights=mean_weights(sequences.mask.reshape(-1)),
        )


class BehavioralCloning:
    """Imitation beside PPO, POCA (`update`) or SAC (`learn`). It shares the actor with them."""

    def __init__(
        self,
        config: BehavioralCloningConfig,
        actor: Actor,
        demonstrations: DemonstrationBuffer,
        *,
        learning_rate: float,
        batch_size: int,
        sequence_length: int = 1,
        seed: int = 0,
    ) -> None:
        """`learning_rate`, `batch_size` and (with a memory) `sequence_length` are the trainer's."""
        self._config = config
        self.set_learning_rate(learning_rate)
        self._epochs = config.num_epoch or EPOCHS
        self._samples = config.samples_per_update
        self._generator = torch.Generator().manual_seed(seed)
        self._imitator = Imitator(
            actor,
            demonstrations,
            batch_size=config.batch_size or batch_size,
            sequence_length=sequence_length,
            generator=self._generator,
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Go on with the trainer's new rate, times `strength`."""
        rate = learning_rate * self._config.strength
        self._schedule = Schedule(
            "linear" if self._config.steps else "constant", rate, min(LEARNING_RATE_FLOOR, rate), self._config.steps
        )

    def is_over(self, step: int) -> bool:
        """Whether the rate has fallen to its end, so that nothing is imitated any more."""
        return self._schedule.at(step) <= LEARNING_RATE_FLOOR

    def update(self, step: int) -> dict[str, float]:
        """Make the passes of one update at the trainer's `step`; return the metrics, none once imitation is over.

        Raise `Diverged`, with the actor as before, if any value on the way is not finite or the loss explodes.
        """
        if self.is_over(step):
            return {}
        before, generator = self._imitator.optimizer.snapshot(), self._generator.get_state()
        rate, losses = self._schedule.at(step), []
        for chosen in self._minibatches():
            losses.append(self._imitator.learn(chosen, rate))
        try:
            return {LOSS: self._imitator.conclude(losses, chosen)}
        except Diverged:
            self._imitator.optimizer.restore(before)
            self._generator.set_state(generator)
            raise

    def learn(self, step: int) -> Float[Tensor, ""] | None:
        """Take the gradient steps that belong to one of SAC's; return their mean loss, None once it is over.

        The loss stays on the device. What is not finite, or explodes, is for the caller to find, with `is_finite`, and
        to take back, with `snapshot`.
        """
        if self.is_over(step):
            return None
        rate = self._schedule.at(step)
        return torch.stack([self._imitator.learn(self._imitator.drawn(), rate) for _ in range(self._epochs)]).mean()

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether the actor and the moments of this optimizer are finite."""
        return self._imitator.optimizer.all_finite()

    def snapshot(self) -> list[Tensor]:
        """Return a copy of the actor and this optimizer to go back to."""
        return self._imitator.optimizer.snapshot()

    def restore(self, snapshot: list[Tensor]) -> None:
        """Go back to a snapshot."""
        self._imitator.optimizer.restore(snapshot)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on, but the actor."""
        return {"optimizer": self._imitator.optimizer.state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._imitator.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())

    def _minibatches(self) -> Iterator[Tensor]:
        imitator = self._imitator
        limit = self._samples // imitator.length if self._samples else imitator.sequences
        taken = max(min(imitator.sequences, limit), 1)
        size = min(imitator.size, taken)
        for _ in range(self._epochs):
            yield from torch.split(imitator.shuffled()[: taken // size * size], size)


def cloning_of(
    config: ReinforcementConfig, actor: Actor, shown: DemonstrationBuffer | None, sequence_length: int, seed: int
) -> BehavioralCloning | None:
    """Return the imitation that a behavior's configuration asks for, with the trainer's numbers; None without."""
    if config.behavioral_cloning is None:
        return None
    assert shown is not None, "build_algorithm gives the demonstrations of this section"
    hyper = config.hyperparameters
    return BehavioralCloning(
        config.behavioral_cloning,
        actor,
        shown,
        learning_rate=hyper.learning_rate,
        batch_size=hyper.batch_size,
        sequence_length=sequence_length,
        seed=seed,
    )


@dataclass
class _Pass:
    """A shuffled pass over the demonstrations, and how much of it is done."""

    order: Int[Tensor, " Q"]
    at: int = 0


class Cloning:
    """A clone run: an actor learns from demonstrations alone. Deterministic by seed.

    Shuffled passes without end; a pass's last minibatch may be smaller. The statistics of a normalizer are those of the
    demonstrations, from the beginning on.
    """

    version: int
    """How many gradient steps the weights have seen: the version under which they are published."""

    def __init__(
        self,
        config: CloneConfig,
        spec: BehaviorSpec,
        demonstrations: DemonstrationBuffer,
        device: torch.device,
        seed: int,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper, memory = config.hyperparameters, config.network_settings.memory
        self.config, self.version = config, 0
        self._generator = torch.Generator().manual_seed(seed)
        self._actor = Actor(spec, config.network_settings, self._generator).to(device)
        if self._actor.normalizer is not None:
            everything = demonstrations.observations(demonstrations.transitions.index)
            vectors = [values.float() for values in everything if values.dim() == 2]
            self._actor.normalizer.merge(torch.cat(vectors, 1))
        self.reconfigure(config)
        self._imitator = Imitator(
            self._actor,
            demonstrations,
            batch_size=hyper.batch_size,
            sequence_length=1 if memory is None else memory.sequence_length,
            generator=self._generator,
        )
        self._pass = _Pass(self._imitator.shuffled())

    def reconfigure(self, config: CloneConfig) -> None:
        """Go on with another configuration from the next iteration on; only numbers of its schedule differ."""
        self.config, hyper = config, config.hyperparameters
        self._schedule = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )

    @property
    def actor(self) -> Actor:
        """The policy network, for exports."""
        return self._actor

    def iterate(self, iterations: int = 1) -> dict[str, float]:
        """Take gradient steps; return the metrics, means over these steps.

        Raise `Diverged` if any value on the way is not finite or the loss explodes. Weights and version are then those
        from before, but the pass over the demonstrations goes on: taken once more, these steps meet other minibatches.
        """
        before, version = self._imitator.optimizer.snapshot(), self.version
        losses = []
        for _ in range(iterations):
            rate, chosen = self._schedule.at(self.version), self._next()
            losses.append(self._imitator.learn(chosen, rate))
            self.version += 1
        try:
            return {LOSS: self._imitator.conclude(losses, chosen), "Policy/Learning Rate": rate}
        except Diverged:
            self._imitator.optimizer.restore(before)
            self.version = version
            raise

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them."""
        return self._actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next iteration depends on. Tensors are copies."""
        return {
            "version": self.version,
            "generator": self._generator.get_state(),
            "order": self._pass.order.clone(),
            "at": self._pass.at,
            "model": {name: tensor.clone() for name, tensor in self._actor.state_dict().items()},
            "optimizer": self._imitator.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; with other demonstrations than then, in a new pass."""
        self._actor.load_state_dict(state["model"])
        self._imitator.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        self.version = state["version"]
        same = len(state["order"]) == self._imitator.sequences
        self._pass = _Pass(state["order"].cpu(), state["at"]) if same else _Pass(self._imitator.shuffled())

    def _next(self) -> Tensor:
        """Return the sequences of the next minibatch."""
        if self._pass.at >= len(self._pass.order):
            self._pass = _Pass(self._imitator.shuffled())
        chosen = self._pass.order[self._pass.at : self._pass.at + self._imitator.size]
        self._pass.at += self._imitator.size
        return chosen
