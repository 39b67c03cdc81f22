"""Types of fields of requests that several features share. Without FastAPI: controllers and workers read them, too."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from ludus.names import MAX_NAME, MAX_TAG, TAG_RULE, is_tag
from ludus.validation import NAME, NO_NUL, Form, OneOf
from server.kit.db.ids import ALPHABET, LENGTH
from server.kit.db.texts import JsonObject


def _no_id(name: str) -> str:
    if re.fullmatch(rf"run_[{ALPHABET}]{{{LENGTH}}}", name):
        raise ValueError("has the form of a run's id; where runs are named, it would be taken for one")
    return name


Name = Annotated[str, StringConstraints(max_length=MAX_NAME), NAME]
"""Names, and ids, which are names, too."""
RunName = Annotated[Name, AfterValidator(_no_id)]
"""A name that is given to a run: never one that may be another run's id."""
Tag = Annotated[str, StringConstraints(max_length=MAX_TAG), Form(TAG_RULE, r"^[^\x00-\x1f*]+$", is_tag)]
Text = Annotated[str, StringConstraints(max_length=2000), NO_NUL]


Document = Annotated[
    JsonObject | Annotated[str, StringConstraints(max_length=2**21)],
    OneOf("a configuration: an object, or its text as YAML or JSON"),
]
"""A configuration as it is sent."""


class Write(BaseModel):
    """Parent of request bodies: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
