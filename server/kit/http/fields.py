"""Types of fields of requests that several features share. Without FastAPI: controllers and workers read them, too."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from server.kit.db.ids import ALPHABET, LENGTH

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Pattern of names, which are parts of addresses and command lines."""
TEXT = r"^[^\x00]*$"
"""Any text but NUL, which PostgreSQL doesn't store."""


def _no_id(name: str) -> str:
    if re.fullmatch(rf"run_[{ALPHABET}]{{{LENGTH}}}", name):
        raise ValueError("has the form of a run's id; where runs are named, it would be taken for one")
    return name


Name = Annotated[str, StringConstraints(max_length=200, pattern=NAME)]
RunName = Annotated[Name, AfterValidator(_no_id)]
"""A name that is given to a run: never one that may be another run's id."""
RunReference = Annotated[str, StringConstraints(max_length=200, pattern=NAME)]
"""A run's id, or a name: the newest run of that name."""
Tag = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._=/@+-]*$")]
Text = Annotated[str, StringConstraints(max_length=2000, pattern=TEXT)]


class Write(BaseModel):
    """Parent of request bodies: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
