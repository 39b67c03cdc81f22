"""Creates the first token; access to the database is the authorization."""

from collections.abc import Iterable

from pydantic import TypeAdapter, ValidationError

from ludus.schemas.tokens import Scope
from ludus.validation import in_words
from server.access.service import TokenCreate, TokenService
from server.kit.db import migrate
from server.kit.db.projects import EVERY
from server.kit.errors import Invalid
from server.kit.principal import everything
from server.kit.settings import Settings

ACTOR = "ludus admin"
"""The token's `created_by` in the database."""


class TokenInvalid(Invalid, code="invalid_token"):
    """The request does not describe a valid token."""

    problem: str
    sentence = "Such a token cannot be made: {problem}."


def create_first_token(settings: Settings, name: str, scopes: Iterable[str], project: str = EVERY) -> tuple[str, str]:
    """Make a token in the settings' database; return its id and its text.

    Raises TokenInvalid, NotMigrated, SchemaOutdated, DatabaseUnavailable.
    """
    try:
        request = TypeAdapter(TokenCreate).validate_python({"name": name, "scopes": list(scopes), "project": project})
    except ValidationError as error:
        first = error.errors()[0]
        raise TokenInvalid(f"{first['loc'][0]}: {in_words(first)}") from None
    with migrate.existing(settings.database) as database, database.write() as session:
        created = TokenService(session, everything(ACTOR)).create(
            request.name, [Scope(scope) for scope in request.scopes], project=project
        )
        return created.token.id, created.text
