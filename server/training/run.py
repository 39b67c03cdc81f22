"""The configuration of a whole run: its behaviors, and what they share."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from server.training.behavior import BehaviorConfig, FromDemonstrations
from server.training.document import Path
from server.training.values import OWN, BehaviorName, Flag, PositiveReal, Real, Section, Seed, Whole


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


Device = Annotated[str, StringConstraints(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")]


class TorchSettings(Section):
    """Where PyTorch computes."""

    device: Device | None = Field(
        default=None, description="`cpu`, `cuda` or `cuda:N`; null = cuda where the worker has it, else cpu."
    )
    collector_device: Device | None = Field(
        default=None,
        description="Where collectors act: `cpu`, `cuda` or `cuda:N`; null = cpu. A GPU is for pictures, entities, "
        "memories and goals; policies of vectors alone act in numpy on the CPU, whatever stands here. Each collector "
        "takes some of the GPU's memory for itself.",
        json_schema_extra=OWN,
    )
    bf16: Flag = Field(
        default=False,
        description="Compute visual networks in bfloat16 on a GPU: faster, about 3 digits; weights stay float32. On a "
        "CPU nothing changes, and an event says so.",
        json_schema_extra=OWN,
    )
    compile: Flag = Field(
        default=False,
        description="Let `torch.compile` fuse the operations of PPO's update, in the background while training goes "
        "on. With other trainers, with several `processes`, or without a C++ compiler on the worker nothing changes, "
        "and an event says so.",
        json_schema_extra=OWN,
    )
    processes: Whole = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share each update, on the GPUs from `device` on (`cuda:0` and 4: the first four). "
        "Each takes its share of every minibatch, so that the result is that of one process. Of SAC each holds the "
        "whole replay buffer, too.",
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

    def demonstrations(self) -> Mapping[Path, list[str]]:
        """Return the ids of the demonstrations that are needed, by the paths of the keys that list them."""
        found: dict[Path, list[str]] = {}
        if self.default_settings is not None:
            found |= _demonstrations(self.default_settings, ("default_settings",))
        for name, behavior in self.behaviors.items():
            found |= _demonstrations(behavior, ("behaviors", name))
        return found

    @property
    def max_steps(self) -> int:
        """Agent steps of all named behaviors together, at which the run is complete."""
        return sum(behavior.max_steps for behavior in self.behaviors.values())


def _demonstrations(section: Section, path: Path) -> dict[Path, list[str]]:
    """Return what a section, and those inside it, need."""
    own = section.demonstrations if isinstance(section, FromDemonstrations) else []
    found = {(*path, "demonstrations"): own} if own else {}
    for key in type(section).model_fields:
        for below, inner in _sections(getattr(section, key), (*path, key)):
            found |= _demonstrations(inner, below)
    return found


def _sections(value: object, path: Path) -> Iterator[tuple[Path, Section]]:
    """Yield a key's value, or the elements of a list, as far as they are sections."""
    if isinstance(value, Section):
        yield path, value
    elif isinstance(value, list):
        yield from (((*path, index), each) for index, each in enumerate(value) if isinstance(each, Section))
