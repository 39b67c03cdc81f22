"""The settings of `LUDUS_METRICS__...`."""

from typing import Annotated

from pydantic import Field, field_validator

from server.kit.listening import Group

Days = Annotated[float, Field(gt=0, le=36500)]


class MetricsSettings(Group):
    """How long the controller keeps metrics of runs, and where. Newest and extreme values are kept for ever."""

    archive_days: Days | None = 7
    """Days after its end when a run's metrics move from the database to a Parquet file in the artifact store; the API
    reads them there. Empty: never.
    """
    project_archive_days: dict[str, Days | None] = Field(default={})
    """The same for projects by name, before `archive_days`, as JSON: `{"bots": 1, "league": null}`."""
    full_days: Days | None = None
    """Age in days at which the points of a metric are thinned to `thinned_points`. The last one and the extremes are
    always kept. Default: never.
    """
    project_full_days: dict[str, Days | None] = Field(default={})
    """The same for projects by name, before `full_days`, as JSON: `{"bots": 30}`."""
    thinned_points: int = Field(default=2000, ge=100, le=1_000_000)
    """Maximum number of points of one metric that are older than `full_days`."""

    def full_days_of(self, project: str) -> float | None:
        """Return `full_days` of a project."""
        return self.project_full_days.get(project, self.full_days)

    @field_validator("archive_days", "full_days", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Take an empty variable for none."""
        return None if value == "" else value
