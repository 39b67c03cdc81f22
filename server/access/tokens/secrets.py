"""The texts of tokens: `ludus_<id>_<secret>`.

The id finds the row. The secret has 256 random bits, so that its SHA-256 can be stored without salt or stretching:
there is nothing to guess. The text is shown once, when the token is made, and stored nowhere.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from server.kit.db.ids import new_id

PREFIX: Final = "ludus"
SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"ludus_([0-9a-z]{26})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just drawn."""

    token_id: str
    text: str
    digest: str
    """The digest of the secret, which is stored."""

    def __repr__(self) -> str:
        return f"NewToken({self.token_id!r})"


def draw() -> NewToken:
    """Draw a token."""
    token_id = new_id("tok")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(token_id, f"{PREFIX}_{token_id.removeprefix('tok_')}_{secret}", digest_of(secret))


def parse(text: str) -> tuple[str, str] | None:
    """Return the id and the digest of the secret of a token; None if the text is not one of ours."""
    found = _FORM.fullmatch(text)
    return None if found is None else (f"tok_{found[1]}", digest_of(found[2]))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two secrets or digests in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
