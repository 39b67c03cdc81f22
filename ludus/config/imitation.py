"""Imitation of demonstrations, and their sources."""

from typing import Annotated

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from ludus.config.hyperparameters import MAX_BUFFER, MAX_STEPS
from ludus.config.values import DemonstrationId, Flag, Own, Real, Section, Steps, Whole, config_error

MAX_DEMONSTRATIONS = 1000
"""Most demonstrations of one section."""


class FromDemonstrations(Section):
    """Parent of the sections that need demonstrations: uploaded ones by id, or (a trainer alone) files by path."""

    demo_path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """A `.demo` or `.npz` file, or a folder of them, on the disk of a trainer that runs alone (`python -m
    worker.trainer CONFIG`). A server refuses it: upload the files, and name them in `demonstrations`.
    """
    demonstrations: Own[list[DemonstrationId]] = Field(default=[], max_length=MAX_DEMONSTRATIONS)
    """Ids of uploaded demonstrations (`ludus demonstration upload FILE`), read as one. This or `demo_path` is needed.
    """

    legacy_pairing: Own[Flag] = False
    """Pair observations and actions as ML-Agents 1.1.0 reads its `.demo` files: each observation with the action
    *before* it. Only to reproduce its results.
    """

    @field_validator("demonstrations")
    @classmethod
    def _given(cls, demonstrations: list[str], info: ValidationInfo) -> list[str]:
        if not demonstrations and info.data.get("demo_path", "") is None:
            raise config_error("missing", "is missing")
        if len(set(demonstrations)) < len(demonstrations):
            raise config_error("invalid_value", "names a demonstration twice; name each once")
        return demonstrations


class BehavioralCloningConfig(FromDemonstrations):
    """Imitation of demonstrations beside the trainer's own objective, usually at the beginning."""

    strength: Real = Field(default=1.0, ge=0)
    """Factor on the trainer's `learning_rate` for the steps of imitation. Typical: 0.1 to 0.5."""
    steps: Steps = Field(default=0, ge=0, le=MAX_STEPS)
    """Agent steps over which the imitation's learning rate falls to 0; 0 = constant, for the whole run."""
    batch_size: Whole | None = Field(default=None, ge=1, le=MAX_BUFFER)
    """Demonstrated steps per gradient step; null = `hyperparameters.batch_size`. Typical: 512 to 5,120 with continuous
    actions, 32 to 512 with discrete ones.
    """
    num_epoch: Whole | None = Field(default=None, ge=1, le=1000)
    """Passes over the demonstrated steps per update (under `sac`: minibatches per gradient step); null = 3. Typical: 3
    to 10.
    """
    samples_per_update: Whole = Field(default=0, ge=0, le=MAX_BUFFER)
    """Maximum number of demonstrated steps per pass; 0 = all. Without effect under `sac`. Typical:
    `hyperparameters.buffer_size`, if there are many demonstrations.
    """
