"""What the API says of metrics. A value that is not a finite number is null."""

from pydantic import Field

from server.kit.http.fields import Read, Time


class MetricRead(Read):
    """The newest value of a metric."""

    behavior: str = Field(description="Empty for metrics of the run as a whole.")
    key: str
    step: int
    value: float | None
    at: Time


class MetricList(Read):
    """The newest values of all metrics of a run, by behavior and key."""

    metrics: list[MetricRead]


class SeriesRead(Read):
    """A metric over time in columns, ascending by step; where it was thinned, an entry stands for several points."""

    behavior: str
    key: str
    total: int = Field(description="Points that the entries stand for.")
    steps: list[int] = Field(description="Of each entry's last point, as are the times.")
    times: list[Time]
    values: list[float | None] = Field(description="Means.")
    minima: list[float | None]
    maxima: list[float | None]
    counts: list[int] = Field(description="How many points each entry stands for.")


class SeriesList(Read):
    """One series per behavior that has the metric."""

    series: list[SeriesRead]
