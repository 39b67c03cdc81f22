"""Checks of the database when a process starts; those of poolers are in `test_pooler.py`."""

import pytest

from server.kit.db.checks import WrongEncoding, check_database
from server.kit.settings import DatabaseSettings
from tests.conftest import postgresql_database


@pytest.mark.postgres
def test_a_database_without_an_encoding_is_refused_with_what_to_do() -> None:
    """As where `initdb` ran without a locale."""
    with postgresql_database("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as url:
        settings = DatabaseSettings(url=url.render_as_string(hide_password=False))  # type: ignore[arg-type]  # pydantic makes it secret
        with pytest.raises(WrongEncoding, match=r"the encoding SQL_ASCII; Ludus needs UTF8\..*ENCODING 'UTF8'"):
            check_database(settings)
