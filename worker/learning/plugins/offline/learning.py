"""What IQL and ReBRAC share: a replay buffer that begins with demonstrations, and gradient steps without simulators.

Demonstrated steps lie in the buffer like experience, with the endings that they were recorded with: a termination ends
a return, a truncation, or the end of a recording, does not (the observation that followed has a value). The statistics
of a normalizer are those of the demonstrations from the beginning on; what is played later is merged to them.

Alone (`trainer_type: offline`) each gradient step draws from the demonstrations, and the policy is published without
noise: simulators evaluate it. With simulators (`finetune`) rounds of experience are added to the same buffer, and steps
are drawn from both alike (Kostrikov et al. 2021, section 5.3).
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from ludus.config.plugins.offline import FinetuneConfig, OfflineConfig
from ludus.demonstrations import DemonstrationError
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.replay import Replayed
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.algorithms.algorithm import DemonstratedAlgorithm
from worker.learning.algorithms.off_policy import OffPolicyAlgorithm, ReplayedExperience
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor
from worker.learning.rewards.signals import SignalSet

NO_NOISE = -20.0
"""The logarithm of a deviation that changes no action."""


class DemonstratedExperience(ReplayedExperience):
    """A replay buffer that begins with demonstrations."""

    drawn_rows: Tensor
    """(R,) int64: where the steps of the last batch lie in the buffer."""

    def __init__(
        self,
        config: OfflineConfig | FinetuneConfig,
        spec: BehaviorSpec,
        device: torch.device,
        actor: Actor,
        signals: SignalSet,
        generator: torch.Generator,
        expert: DemonstrationBuffer,
    ) -> None:
        """Raise `DemonstrationError` where nothing can be learned from the demonstrations."""
        if isinstance(config, OfflineConfig):
            config = FinetuneConfig.of(config, expert.steps)
        size = config.hyperparameters.buffer_size
        if size < expert.steps:
            raise DemonstrationError(
                f"hyperparameters.buffer_size: is {size:,}, and the demonstrations have {expert.steps:,} steps; raise "
                "it, to hold the steps that are played, too"
            )
        if not (expert.transitions.rewards.any() or expert.transitions.group_rewards.any()):
            raise DemonstrationError(
                f"demonstrations: the rewards of all {expert.steps:,} steps are 0, so that no action is better than "
                "another; record them with the game's rewards, or take trainer_type clone, which needs none"
            )
        super().__init__(config, spec, device, actor, signals, generator)
        rollout = rollout_of(expert)
        self.replay.store(rollout)
        actor.body.update_normalizer([part.to(device) for part in rollout.observations], self.statistics)
        self.adopt_statistics()

    def _draw(self) -> Replayed:
        drawn = super()._draw()
        self.drawn_rows = drawn.rows
        return drawn


class OfflineAlgorithm(OffPolicyAlgorithm, DemonstratedAlgorithm):
    """An algorithm that learns from demonstrations, and from what is played beside them."""

    config: OfflineConfig

    def log_sigma(self) -> Float[Tensor, " C"]:
        """Return the logarithm of the noise's deviation with which simulators explore, for each column."""
        raise NotImplementedError

    def iterate(self, iterations: int = 1) -> dict[str, float]:
        """Take gradient steps; see `DemonstratedAlgorithm`."""
        hyper, version = self.config.hyperparameters, self.version
        schedule = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, self.config.max_steps
        )
        with self.mode(), self._state.undone_if_diverged():
            terms = [self.gradient_step(schedule.at(step)) for step in range(version, version + iterations)]
            metrics = self._concluded(terms, [], [])
        self.version += iterations
        return metrics | {"Policy/Learning Rate": schedule.at(self.version - 1)}

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; see `OffPolicyAlgorithm.update`."""
        version = self.version
        metrics = super().update(rollout, step)
        if self.version != version:  # the weights of collectors change with the version alone
            self.set_noise()
        return metrics

    def reconfigure(self, config: OfflineConfig | FinetuneConfig) -> None:
        """Go on with another configuration from the next update on; see `Learning`."""
        if isinstance(config, OfflineConfig):
            self.config = config
        else:
            super().reconfigure(config)

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; the noise is that of this trainer."""
        super().load_state_dict(state)
        self.set_noise()

    @torch.no_grad()
    def set_noise(self) -> None:
        """Set the noise with which simulators act: none, where they only evaluate."""
        noise = self.actor.head_parameters().get("noise_log_sigma")
        if noise is not None and len(noise):
            noise.copy_(
                torch.full_like(noise, NO_NOISE) if isinstance(self.config, OfflineConfig) else self.log_sigma()
            )


def rollout_of(expert: DemonstrationBuffer) -> Rollout:
    """Return demonstrated steps as a round of experience: each piece is a segment of an agent of its own."""
    steps, pieces = expert.steps, len(expert.lengths)
    transitions, lengths = expert.transitions, expert.lengths.cpu()
    last = lengths.cumsum(0) - 1
    terminated, ended = transitions.terminated.cpu()[last], transitions.ended.cpu()[last]
    endings = torch.full((pieces,), int(SegmentEnd.CUT), dtype=torch.uint8)
    endings[ended] = int(SegmentEnd.TRUNCATED)
    endings[terminated] = int(SegmentEnd.TERMINATED)
    pool = [part.cpu() for part in transitions.observations]
    none, zero = torch.zeros(pieces, dtype=torch.int64), torch.zeros(steps, dtype=torch.int64)
    columns = transitions.continuous.shape[1] + transitions.discrete.shape[1]
    masks = torch.ones(steps, 0, dtype=torch.bool) if expert.masks is None else expert.masks.cpu()
    return Rollout(
        observations=[part[:steps] for part in pool],
        next_observations=[part[steps:] for part in pool],
        continuous=transitions.continuous.cpu(),
        discrete=transitions.discrete.cpu(),
        log_probs=torch.zeros(steps, columns),
        action_masks=masks if masks.shape[1] else None,
        rewards=transitions.rewards.cpu(),
        group_rewards=transitions.group_rewards.cpu(),
        versions=zero,
        lengths=lengths,
        endings=endings,
        starts_episode=none.bool(),
        memories=None,
        ticks=zero,
        successor_ticks=none,
        simulators=torch.full_like(none, -1),  # of none
        agents=torch.arange(pieces),
        groups=none,
        episodes=none,
        sequences=none,
        mates_alive=none.bool(),
    )
