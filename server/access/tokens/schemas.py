"""What the API says of tokens, and what it is told."""

from typing import Annotated

from pydantic import Field, StringConstraints

from server.access.tokens.principal import Scope
from server.kit.http.fields import Name, Read, Time, Write
from server.kit.http.listing import ListPage

MAX_SECONDS = 10 * 365 * 86400.0
Project = Annotated[str, StringConstraints(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*|\*)$")]
Lifetime = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class TokenCreate(Write):
    """A token that is to be made."""

    name: Name = Field(description="For people: who or what will use it.")
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] = Field(
        description="`read`: look at the project; `run`: also create, change and end what is in it, and play in its "
        "runs; `admin`: also its tokens and its audit log; `simulate`: play in its runs, and nothing else."
    )
    project: Project | None = Field(
        default=None, description="The project that it is bound to: that of this request; `*` for all projects."
    )
    run: Name | None = Field(
        default=None, description="Id or name of the only run in which it may play; for `simulate` alone."
    )
    expires_in_seconds: Lifetime | None = Field(default=None, description="Not given, it holds until it is revoked.")


class SimulatorTokenCreate(Write):
    """A token for the simulators of one run."""

    name: Name | None = Field(default=None, description="For people; not given, it says whose simulators.")
    expires_in_seconds: Lifetime | None = Field(default=None, description="Not given, it holds until it is revoked.")


class TokenRead(Read):
    """A token, without its secret."""

    id: str
    name: str
    scopes: list[Scope]
    project: str = Field(description="`*`: all projects.")
    run_id: str | None = Field(description="The only run in which it may play.")
    created_by: str = Field(description="Name of the token that made it.")
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None = Field(description="To the minute.")
    revoked_at: Time | None


class TokenCreated(TokenRead):
    """A token that was just made."""

    token: str | None = Field(
        description="What to send as `Authorization: Bearer TOKEN`. Shown here and never again: null in the answer to "
        "a repeated request."
    )


class TokenPage(ListPage):
    """Tokens, newest first, also those that don't hold any more."""

    tokens: list[TokenRead]


class PrincipalRead(Read):
    """Who makes this request."""

    name: str
    token_id: str | None = Field(description="Null: the token of the server's settings, or none at all.")
    scopes: list[Scope] = Field(description="With those that are included in others.")
    project: str = Field(description="What it is bound to; `*`: nothing.")
    acts_in: str = Field(description="The project of this request.")
    run_id: str | None
