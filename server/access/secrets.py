"""The texts of tokens, `ludus_<id>_<secret>`, and the values of cookies, `ses_<id>.<secret>`.

The id finds the row. The secret has 256 random bits, so that its SHA-256 can be stored without salt or stretching:
there is nothing to guess. The text of a token is shown once, when the token is made, and stored nowhere.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Self

from server.kit.db.ids import new_id

PREFIX: Final = "ludus"
SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"ludus_([0-9a-z]{26})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just drawn."""

    token_id: str
    text: str = field(repr=False)
    digest: str = field(repr=False)
    """The digest of the secret, which is stored."""


def draw() -> NewToken:
    """Draw a token."""
    token_id = new_id("tok")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(token_id, f"{PREFIX}_{token_id.removeprefix('tok_')}_{secret}", digest_of(secret))


def parse(text: str) -> tuple[str, str] | None:
    """Return the id and the digest of the secret of a token; None if the text is not one of ours."""
    match = _FORM.fullmatch(text)
    return None if match is None else (f"tok_{match[1]}", digest_of(match[2]))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two secrets or digests in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


SESSION_PREFIX: Final = "ses"
_COOKIE: Final = re.compile(rf"({SESSION_PREFIX}_[0-9a-z]{{26}})\.([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """The value of a cookie."""

    session_id: str
    secret: str = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        """Draw the cookie of a new session."""
        return cls(new_id(SESSION_PREFIX), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a cookie's value; None if it is not one of ours."""
        match = _COOKIE.fullmatch(text)
        return None if match is None else cls(match[1], match[2])

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
    return id_.startswith(f"{SESSION_PREFIX}_")
