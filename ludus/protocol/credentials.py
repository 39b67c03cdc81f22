"""The token that a simulator shows to the gateway, or a client to the API, and where it came from."""

import os
from dataclasses import dataclass, field
from typing import Final

SIMULATOR_TOKEN: Final = "LUDUS_SIMULATOR_TOKEN"  # noqa: S105  a name
CLIENT_TOKEN: Final = "LUDUS_TOKEN"  # noqa: S105  a name
VARIABLES: Final = (SIMULATOR_TOKEN, CLIENT_TOKEN)
"""Those of simulators. The more specific one comes first: it wins. One variable is enough where its token may both use
the API and simulate.
"""


@dataclass(frozen=True)
class Credential:
    """A bearer token."""

    token: str = field(repr=False)
    origin: str
    """Its source, as in `the token ...`: for messages about a token that is refused."""

    @property
    def of_client(self) -> bool:
        """Whether it is the one that client commands take from the environment."""
        return self.origin == f"in {CLIENT_TOKEN}"


def unsendable(text: str) -> str | None:
    """Return the first character that neither HTTP's headers nor gRPC's metadata can carry: all but printable ASCII."""
    return next((character for character in text if not " " <= character <= "~"), None)


def credential(given: str | None, variables: tuple[str, ...] = VARIABLES) -> Credential | None:
    """Return the token that was given, or that of the first variable with one; None where none is to be shown.

    The empty text stands for no token, also if the variables name one. Blanks and line breaks around a token, as pasted
    secrets have them, are left out.
    """
    if given is not None:
        return Credential(token, "that was given") if (token := given.strip()) else None
    for variable in variables:
        if token := os.environ.get(variable, "").strip():
            return Credential(token, f"in {variable}")
    return None
