"""The configuration of a whole run: its behaviors, and what they share."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from server.training.behavior import BehaviorConfig
from server.training.values import OWN, BehaviorName, Flag, PositiveReal, Real, Section, Seed


class SimulatorsConfig(Section):
    """How patiently the trainer waits for simulators."""

    grace_seconds: PositiveReal = Field(
        default=60.0,
        description="Seconds without any simulator, after there was one, before the run pauses.",
        json_schema_extra=OWN,
    )
    startup_timeout_seconds: PositiveReal | None = Field(
        default=600.0,
        description="Seconds that a connected simulator may take for its first step (games load for minutes); "
        "null = no limit.",
        json_schema_extra=OWN,
    )
    step_timeout_seconds: PositiveReal = Field(
        default=60.0,
        description="Seconds that a simulator may take for any later step before it is given up.",
        json_schema_extra=OWN,
    )


class TorchSettings(Section):
    """Where PyTorch computes."""

    device: Annotated[str, StringConstraints(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] | None = Field(
        default=None, description="`cpu`, `cuda` or `cuda:N`; null = cuda where the worker has it, else cpu."
    )
    bf16: Flag = Field(
        default=False,
        description="Compute visual networks in bfloat16 on a GPU: faster, about 3 digits; weights stay float32.",
        json_schema_extra=OWN,
    )
    compile: Flag = Field(
        default=False,
        description="Let `torch.compile` fuse the update's operations, in the background while training goes on; "
        "without a C++ compiler on the worker nothing changes, and an event says so.",
        json_schema_extra=OWN,
    )


class RunConfig(Section):
    """A run's configuration with every default filled in: what is stored with the run and what the worker reads."""

    schema_version: Literal[1] = Field(
        default=1, description="Version of this format; raised when a key changes its meaning.", json_schema_extra=OWN
    )
    default_settings: BehaviorConfig | None = Field(
        default=None,
        description="Template: each behavior starts from it, maps merged key by key, a signal set to null dropped. "
        "Behaviors that a simulator announces and `behaviors` doesn't name are trained by it as it is.",
    )
    behaviors: dict[BehaviorName, BehaviorConfig] = Field(
        min_length=1,
        max_length=256,
        description="The behaviors to train, by their names in the game (without `?team=`); `Name: {}` = all defaults.",
    )
    environment_parameters: dict[Annotated[str, StringConstraints(min_length=1, max_length=200)], Real] = Field(
        default={}, max_length=1000, description="Constants that every simulator is told when it connects and resets."
    )
    torch_settings: TorchSettings = Field(default=TorchSettings(), description="Where PyTorch computes.")
    seed: Seed | None = Field(
        default=None,
        description="Seed of everything random; simulator number n gets seed + n. Null = drawn at creation.",
        json_schema_extra=OWN,
    )
    simulators: SimulatorsConfig = Field(
        default=SimulatorsConfig(), description="How patiently the trainer waits for simulators.", json_schema_extra=OWN
    )

    def behavior(self, name: str) -> BehaviorConfig | None:
        """Return how a behavior of this name (without `?team=`) is trained; None if it is not to be trained."""
        return self.behaviors.get(name, self.default_settings)

    @property
    def max_steps(self) -> int:
        """Agent steps of all named behaviors together, at which the run is complete."""
        return sum(behavior.max_steps for behavior in self.behaviors.values())
