"""API schemas of sessions."""

from typing import Annotated

from pydantic import Field, SecretStr

from server.access.tokens.requests import Project
from server.kit.http.fields import Write


class SessionCreate(Write):
    """A session of a browser that is to be made."""

    token: Annotated[SecretStr, Field(min_length=1, max_length=1000)]
    """The token that the session stands for."""
    project: Project | None = None
    """In which its requests act, unless they name another: the token's, or `default`, if not given; `*` for all."""
