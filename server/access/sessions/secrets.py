"""The values of cookies: `ses_<id>.<secret>`. The id finds the row; the secret has 256 random bits."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Self

from server.access.tokens.secrets import SECRET_BYTES, digest_of
from server.kit.db.ids import new_id

PREFIX: Final = "ses"
_FORM: Final = re.compile(rf"({PREFIX}_[0-9a-z]{{26}})\.([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """The value of a cookie."""

    session_id: str
    secret: str = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        """Draw the cookie of a new session."""
        return cls(new_id(PREFIX), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a cookie's value; None if it is not one of ours."""
        found = _FORM.fullmatch(text)
        return None if found is None else cls(found[1], found[2])

    @property
    def text(self) -> str:
        """The value, as browsers send it."""
        return f"{self.session_id}.{self.secret}"

    @property
    def digest(self) -> str:
        """The digest of the secret, which is stored."""
        return digest_of(self.secret)

    def digest_of_configured(self, token: str) -> str:
        """Return the digest by which the session knows the token of the server's settings."""
        return hmac.new(self.secret.encode(), token.encode(), hashlib.sha256).hexdigest()


def is_session(id_: str) -> bool:
    """Whether an id is that of a session, not of a token."""
    return id_.startswith(f"{PREFIX}_")
