"""A rollout of teams with its targets, and minibatches of it, as POCA learns from them.

Dimensions as in `algorithms.poca`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from worker.experience.sequences import Sequences
from worker.learning.algorithms.on_policy import Experience
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.signals import title


@dataclass(frozen=True)
class TeamExperience(Experience):
    """A rollout with its targets, frozen for all epochs."""

    signals: tuple[str, ...]
    pool: Encoded
    """Observations of all steps, then of what followed the segments: (P, ...) each."""
    actions: Float[Tensor, "P W"]
    """Flat actions; zeros for successors."""
    mates: Int[Tensor, "N G"]
    """Rows of the pool, on the CPU."""
    present: Bool[Tensor, "N G"]
    """Whether there is a mate; on the CPU."""
    baselines: Float[Tensor, "N S"]
    memories: Float[Tensor, "N K"] | None
    """The actor's, before each step."""
    critic_memories: Float[Tensor, "Q W2"] | None
    """Before each sequence, for the value and for the baseline."""
    sequences: Sequences | None
    """None without a memory."""

    def columns(self) -> list[tuple[str, Tensor]]:
        """Return every column that has to be finite."""
        others = [item for item in super().columns() if item[0] != "observations"]
        behind_values = [name for name, _ in others].index("values") + 1
        others.insert(behind_values, ("baselines", self.baselines))
        return [*(("observations", part) for part in self.pool), *others]

    def estimates(self) -> dict[str, Tensor]:
        """Return the baselines of each signal."""
        names = [f"Policy/{title(name)} Baseline Estimate" for name in self.signals]
        return dict(zip(names, self.baselines.unbind(1), strict=True))


class Minibatch(NamedTuple):
    """Some steps, as the networks see them and as the losses do."""

    rows: Int[Tensor, " R"]
    """Of the rollout: sequences of `length`, one after the other, padded."""
    unpadded: Int[Tensor, " X"] | None
    """Which of `rows` are experience and no padding; None where all are."""
    steps: Int[Tensor, " X"]
    """Of the rollout: those rows."""
    which: Int[Tensor, " Q"] | None
    """The sequences; None without a memory."""
    members: Int[Tensor, " U"]
    """All agents that occur in it, each once: rows of the pool."""
    places: Int[Tensor, "R G1"]
    """Where among them each row's agent is, then its mates."""
    present: Bool[Tensor, "R G"]
    """Whether there is a mate."""
    length: int

    @property
    def real(self) -> None:
        """No mask: `loss` leaves padding out."""

    def without_padding(self, of_rows: Float[Tensor, "R ..."]) -> Float[Tensor, "X ..."]:
        """Return the part of something that all rows have which is of real steps."""
        return of_rows if self.unpadded is None else of_rows.index_select(0, self.unpadded)


def minibatch_of(experience: TeamExperience, part: Int[Tensor, " Q"]) -> Minibatch:
    """Return some steps, or some sequences. Who is in it is found on the CPU: no device is waited for."""
    device, sequences = experience.actions.device, experience.sequences
    rows, real, which, length = part, None, None, 1
    if sequences is not None:
        chosen = sequences.select(part)
        rows, real, which = chosen.rows.reshape(-1), chosen.mask.reshape(-1).nonzero().squeeze(1), part
        length = sequences.rows.shape[1]
    own, present = rows.unsqueeze(1), experience.present[rows]
    team = torch.cat([own, torch.where(present, experience.mates[rows], own)], 1)  # absent: nobody new
    members, places = torch.unique(team, return_inverse=True)
    return Minibatch(
        rows=rows.to(device),
        unpadded=None if real is None else real.to(device),
        steps=(rows if real is None else rows[real]).to(device),
        which=None if which is None else which.to(device),
        members=members.to(device),
        places=places.to(device),
        present=present.to(device),
        length=length,
    )
