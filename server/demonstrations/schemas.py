"""What the API says of demonstrations, and what it is told."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from server.kit.http.fields import Name, Read, Time, Write
from server.kit.http.listing import ListPage

DemonstrationId = Annotated[str, StringConstraints(pattern=r"^dem_[0-9a-z]{26}$")]


class ObservationRead(Read):
    """One observation of an agent."""

    name: str
    shape: list[int] = Field(description="For one agent: (size), (channels, height, width) or (entities, size).")
    dtype: str = Field(description="`float32` or `uint8`.")
    type: str = Field(description="`default` or `goal_signal`.")
    dimension_properties: list[str] = Field(description="As many as `shape` has, or none.")


class ActionsRead(Read):
    """What an agent decides."""

    continuous_size: int
    discrete_branches: list[int] = Field(description="Number of choices of each branch.")


class SpecRead(Read):
    """What a behavior sees and does."""

    name: str
    observations: list[ObservationRead]
    actions: ActionsRead


class SpreadRead(Read):
    """Mean and range over complete episodes."""

    mean: float
    std: float
    minimum: float
    maximum: float


class InspectionRead(Read):
    """What is in a demonstration, in numbers."""

    transitions: int
    episodes: int = Field(description="Complete ones, which `returns` and `lengths` speak of.")
    fragments: int = Field(description="Pieces without their beginning or end: cut recordings, sampled transitions.")
    terminated: int = Field(description="Pieces whose task ended.")
    truncated: int = Field(description="Pieces that a limit cut short.")
    returns: SpreadRead | None = Field(description="Undiscounted; null without a complete episode.")
    lengths: SpreadRead | None = Field(description="Steps; null without a complete episode.")
    continuous: list[list[int]] = Field(
        description="For each continuous action, how often it lay in each of 20 equal bins over [-1, 1]."
    )
    discrete: list[list[int]] = Field(description="For each branch, how often each choice was taken.")


class DemonstrationSummary(Read):
    """A demonstration in a list."""

    id: str
    name: str = Field(description="For people; not unique.")
    behavior: str = Field(description="The behavior that was recorded, as it announced itself.")
    format: str = Field(description="`mlagents` (a `.demo` file) or `ludus` (`.npz`).")
    spec: SpecRead
    transitions: int
    episodes: int = Field(description="Complete ones.")
    mean_return: float | None = Field(description="Of the complete episodes; null without any.")
    size: int = Field(description="Bytes of the file.")
    sha256: str = Field(description="Of the file, lower-case hexadecimal; also the ETag of the download.")
    origin: dict[str, Any] = Field(description="What it was merged or subsampled from; empty if uploaded.")
    project: str
    created_at: Time


class DemonstrationRead(DemonstrationSummary):
    """A recording of good behavior, with its inspection."""

    summary: InspectionRead = Field(description="Episodes, returns and actions.")


class DemonstrationPage(ListPage):
    """Demonstrations, without their inspections."""

    demonstrations: list[DemonstrationSummary]


class DemonstrationMerge(Write):
    """Several demonstrations to become one."""

    demonstrations: list[DemonstrationId] = Field(min_length=1, max_length=1000, description="Ids, in their order.")
    name: Name | None = Field(default=None, description="Of the new one; its id if not given.")


class DemonstrationSubsample(Write):
    """Some episodes of a demonstration, some of its transitions, or some transitions of some episodes."""

    count: int | None = Field(
        default=None, ge=1, le=100_000_000, description="How many transitions, drawn without replacement."
    )
    episodes: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="How many complete episodes: the first ones, or drawn by `seed`.",
    )
    every: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Keep every n-th transition of each episode: from its first one on, or from one drawn by `seed`.",
    )
    seed: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Equal seeds draw equally; 0 for `count` if not given."
    )
    name: Name | None = Field(default=None, description="Of the new one; its id if not given.")

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.count is not None and self.every is not None:
            raise ValueError("count and every both say which transitions: leave one of them out")
        if self.count is self.episodes is self.every is None:
            raise ValueError("say what to keep: episodes, and every or count for transitions")
        return self
