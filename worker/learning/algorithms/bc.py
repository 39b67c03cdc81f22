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
 g. An update that meets a value that is not finite, or whose loss explodes, is taken back and raises `Diverged`
    (`worker.learning.algorithms.numeric_check`). The last minibatch's loss is measured once more behind the last step,
    so that this step counts, too: however few minibatches an update has, it never leaves weights that exploded.

Dimensions: `R` rows of a minibatch, `N` steps shown, `Q` sequences of `L` steps, others as in
`worker.learning.functional`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ludus.config.behavior import CloneConfig
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.state import State
from worker.learning.algorithms.algorithm import DemonstratedAlgorithm
from worker.learning.algorithms.numeric_check import Diverged, NumericCheck
from worker.learning.algorithms.training_state import TrainingState
from worker.learning.data_parallel import average
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.imitation import continuous_error, cross_entropy
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded

LOSS = "Losses/Pretraining Loss"
"""ML-Agents' name of the loss above, the mean over an update's minibatches."""
EPOCHS = 3
"""Passes per update where `num_epoch` is null."""


class ExpertBatch(NamedTuple):
    """A minibatch of observations and actions."""

    encoded: Encoded
    continuous: Float[Tensor, "R C"]
    discrete: Int[Tensor, "R D"]
    masks: Bool[Tensor, "R M"] | None
    weights: Float[Tensor, " R"]
    """Of each row in the mean; 0 for padding."""


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
        self.optimizer = FlatAdam(actor.named_parameters(), owns_storage=False)
        self.demonstrations = demonstrations
        self._sequences = demonstrations.sequences(sequence_length if actor.memory_size else 1)
        self.sequences, self.length = self._sequences.rows.shape
        """`Q` and `L`; without memory `Q` is the number of steps, and `L` is 1."""
        self._generator = generator
        self.size = max(min(batch_size, demonstrations.steps) // self.length, 1)
        """Sequences of a minibatch (steps, without memory)."""

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
        self.optimizer.set_gradient(gradients)
        self.optimizer.step(learning_rate)
        return loss.detach()

    @torch.no_grad()
    def conclude(self, losses: list[Tensor], chosen: Int[Tensor, " B"]) -> float:
        """Return the mean of the losses before each step; `chosen` are the sequences of the last one.

        Raise `Diverged` if one of them, or what the last step left, is not finite or explodes. Ranks that learn as one
        judge it alike. Waits for the device, once.
        """
        judged = average(torch.stack([*losses, self.loss(chosen)]))
        trace = NumericCheck()
        for loss in judged:
            trace.add({LOSS: loss})
        valid = trace.is_valid() & self.optimizer.all_finite()
        well, mean = torch.stack([valid.float(), judged[:-1].mean()]).tolist()
        if not well:
            raise self._diagnosis(trace)
        return float(mean)

    def loss(self, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Return the loss on some sequences."""
        expert = self._expert(chosen)
        actor, layout = self.actor, self.actor.layout
        head, _ = actor(expert.encoded, length=self.length)
        parts = actor.parts(head)
        losses = head.new_zeros(len(head))
        if layout.continuous_size:
            noise = None
            if layout.squashed:
                noise = torch.randn(len(head), layout.continuous_size, generator=self._generator).to(head.device)
            losses = losses + continuous_error(parts.means, parts.log_sigmas, expert.continuous, noise)
        if layout.discrete_branches:
            losses = losses + cross_entropy(parts.logits, expert.discrete, expert.masks, layout.discrete_branches)
        return torch.sum(losses * expert.weights)

    def _diagnosis(self, trace: NumericCheck) -> Diverged:
        """Return an error that names the first wrong term; effects of the last step count as the last minibatch's."""
        last = len(trace) - 2
        diverged = trace.diagnosis()
        if diverged is None:
            return Diverged("weights by imitation", last)
        return Diverged(LOSS, min(diverged.minibatch or 0, last), grown=diverged.grown)

    def _expert(self, chosen: Int[Tensor, " B"]) -> ExpertBatch:
        sequences = self._sequences.select(chosen.to(self._sequences.rows.device))
        rows, real = sequences.rows.reshape(-1), sequences.mask.reshape(-1)
        expert, masks = self.demonstrations.transitions, self.demonstrations.masks
        return ExpertBatch(
            encoded=self.actor.encode(self.demonstrations.observations(rows)),
            continuous=expert.continuous[rows],
            discrete=expert.discrete[rows],
            masks=None if masks is None else masks[rows],
            weights=real / real.sum(),
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
        self.imitator = Imitator(
            actor,
            demonstrations,
            batch_size=config.batch_size or batch_size,
            sequence_length=sequence_length,
            generator=self._generator,
        )
        self.optimizer = self.imitator.optimizer
        """The optimizer of cloning; the trainer's optimizer steps the same weights."""
        self._state = TrainingState(
            {"optimizer": self.optimizer, "generator": self._generator}, changed=[self.optimizer, self._generator]
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
        imitator, rate, losses = self.imitator, self._schedule.at(step), []
        limit = self._samples // imitator.length if self._samples else imitator.sequences
        taken = max(min(imitator.sequences, limit), 1)
        size = min(imitator.size, taken)
        with self._state.undone_if_diverged():
            for _ in range(self._epochs):
                for chosen in torch.split(imitator.shuffled()[: taken // size * size], size):
                    losses.append(imitator.learn(chosen, rate))
            return {LOSS: imitator.conclude(losses, chosen)}

    def learn(self, step: int) -> Float[Tensor, ""] | None:
        """Take the gradient steps that belong to one of SAC's; return their mean loss, None once it is over.

        The loss stays on the device. The caller finds values that are not finite, or explode, with `is_finite`, and
        takes the steps back.
        """
        if self.is_over(step):
            return None
        rate = self._schedule.at(step)
        return torch.stack([self.imitator.learn(self.imitator.drawn(), rate) for _ in range(self._epochs)]).mean()

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether the actor and the moments of this optimizer are finite."""
        return self.optimizer.all_finite()

    def state_dict(self) -> State:
        """Return everything that the next update depends on, but the actor."""
        return self._state.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._state.load_state_dict(state)


def cloning_of(
    config: ReinforcementConfig, actor: Actor, expert: DemonstrationBuffer | None, sequence_length: int, seed: int
) -> BehavioralCloning | None:
    """Return the imitation that a behavior's configuration asks for, with the trainer's numbers; None without."""
    if config.behavioral_cloning is None:
        return None
    assert expert is not None, "build_algorithm gives the demonstrations of this section"
    hyper = config.hyperparameters
    return BehavioralCloning(
        config.behavioral_cloning,
        actor,
        expert,
        learning_rate=hyper.learning_rate,
        batch_size=hyper.batch_size,
        sequence_length=sequence_length,
        seed=seed,
    )


class Cloning(DemonstratedAlgorithm):
    """A clone run: an actor imitates demonstrations. Deterministic by seed.

    Shuffled passes without end; a pass's last minibatch may be smaller. The statistics of a normalizer are those of the
    demonstrations, from the beginning on.
    """

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
        self.actor = Actor(spec, config.network_settings, self._generator).to(device)
        if self.actor.normalizer is not None:
            everything = demonstrations.observations(demonstrations.transitions.index)
            vectors = [values.float() for values in everything if values.dim() == 2]
            self.actor.normalizer.merge(torch.cat(vectors, 1))
        self.reconfigure(config)
        self.imitator = Imitator(
            self.actor,
            demonstrations,
            batch_size=hyper.batch_size,
            sequence_length=1 if memory is None else memory.sequence_length,
            generator=self._generator,
        )
        self._order, self._at = self.imitator.shuffled(), 0
        """A shuffled pass over the demonstrations, and how much of it is done."""
        optimizer = self.imitator.optimizer
        self._state = TrainingState(
            {"generator": self._generator, "model": self.actor, "optimizer": optimizer}, changed=[optimizer]
        )

    def reconfigure(self, config: CloneConfig) -> None:
        """Go on with another configuration from the next iteration on; only numbers of its schedule differ."""
        self.config, hyper = config, config.hyperparameters
        self._schedule = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )

    def iterate(self, iterations: int = 1) -> dict[str, float]:
        """Take gradient steps, as `DemonstratedAlgorithm`. A rollback does not undo the pass over demonstrations."""
        version, losses = self.version, []
        with self._state.undone_if_diverged():
            for step in range(version, version + iterations):
                rate, chosen = self._schedule.at(step), self.draw()
                losses.append(self.imitator.learn(chosen, rate))
            loss = self.imitator.conclude(losses, chosen)
        self.version += iterations
        return {LOSS: loss, "Policy/Learning Rate": rate}

    def state_dict(self) -> State:
        """Return everything that the next iteration depends on. Tensors are copies."""
        progress = {"version": self.version, "order": self._order.clone(), "at": self._at}
        return {**progress, **self._state.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; with other demonstrations than then, in a new pass."""
        self._state.load_state_dict(state)
        self.version = state["version"]
        same = len(state["order"]) == self.imitator.sequences
        self._order, self._at = (state["order"].cpu(), state["at"]) if same else (self.imitator.shuffled(), 0)

    def draw(self) -> Tensor:
        """Return the sequences of the next minibatch."""
        if self._at >= len(self._order):
            self._order, self._at = self.imitator.shuffled(), 0
        chosen = self._order[self._at : self._at + self.imitator.size]
        self._at += self.imitator.size
        return chosen
