"""Types of parameters of paths and queries that several routes share."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator, StringConstraints
from starlette.convertors import StringConvertor, register_url_convertor  # codespell:ignore convertors

from ludus.metric_keys import full_key
from ludus.validation import NO_NUL, Form
from server.kit.http.fields import Name


class NameConvertor(StringConvertor):
    """`{run:name}` in a path: ends at a colon, which begins a verb. `/v1/runs/x:stop` is not the run `x:stop`."""

    regex = "[^/:]+"


class TokenConvertor(StringConvertor):
    """`{token:token}` in a path: an id of a token, and never `/v1/tokens/self`."""

    regex = "tok_[0-9a-z]+"


class WorkerConvertor(StringConvertor):
    """`{worker:worker}` in a path: a host's name, or a slot's id, `host/pid/start`."""

    regex = "[^/:]+(?:/[0-9]+/[0-9]+)?"


register_url_convertor("name", NameConvertor())
register_url_convertor("token", TokenConvertor())
register_url_convertor("worker", WorkerConvertor())

RunKey = Annotated[Name, Path(description="A run's id, or a name: the newest run of that name.")]
WorkerKey = Annotated[
    str,
    NO_NUL,
    Path(max_length=200, description="A slot's id, `host/pid/start`, or a host's name: all of its slots."),
]
CheckpointKey = Annotated[Name, Path(max_length=40, description="A checkpoint's id, `latest` or `best`.")]
ConfigName = Annotated[Name, Path(description="Name of a stored configuration.")]
FileName = Annotated[
    str,
    Form("the name of a file, as the list of them has it", r"^[^\x00-\x1f\\]+$"),
    Path(max_length=500, description="Name of a file."),
]
AttemptNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of an attempt.")]
MetricKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    NO_NUL,
    AfterValidator(full_key),
]
"""A metric, as in `Environment/Cumulative Reward`, or a short name of one."""
Version = Annotated[int, Query(ge=1, le=2**31 - 1, description="Version of the configuration.")]
