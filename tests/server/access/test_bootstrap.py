"""The first token of a server, made on its own host."""

from pathlib import Path

import pytest

from server.access.bootstrap import create_first_token
from server.kit.db.checks import NotMigrated
from server.kit.settings import Settings


def test_a_folder_that_is_no_servers_home_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(NotMigrated, match=rf"no database at {tmp_path}/ludus\.db\. Name the server's home"):
        create_first_token(Settings(home=tmp_path), "root", ["admin"])

    assert list(tmp_path.iterdir()) == []
