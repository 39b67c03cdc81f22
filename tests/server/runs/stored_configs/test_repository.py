"""Stored configurations in the database: versions, pages, writers at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, InvalidRequestError

from server.kit.db.database import Database
from server.kit.errors import ConfigNotFound, InvalidQuery
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.runs.stored_configs.models import ConfigVersion
from server.runs.stored_configs.repository import ConfigRepository

BY_NAME = ListQuery(Order("name", descending=False))
NEWEST_FIRST = ListQuery(Order("version"))


def new_version(name: str = "walker", digest: str = "d", **keys: Any) -> dict[str, Any]:
    defaults = {"source": "{}", "document": {}, "resolved": {"digest": digest}, "description": ""}
    return {"name": name, "digest": digest, **defaults, **keys}


def insert(database: Database, *versions: dict[str, Any]) -> None:
    with database.write() as session:
        for version in versions:
            ConfigRepository(session).insert(**version)


def test_versions_count_from_one_per_name(database: Database) -> None:
    insert(database, new_version("a", "1"), new_version("a", "2"), new_version("b", "1"))

    with database.read() as session:
        assert ConfigRepository(session).get_or_raise("a").version == 2
        assert ConfigRepository(session).get_or_raise("b").version == 1


def test_a_version_is_kept_as_it_was_stored(database: Database) -> None:
    insert(database, new_version(source="# mine\na: 1", document={"a": 1}, description="first try"))

    with database.read() as session:
        stored = ConfigRepository(session).get_or_raise("walker", 1)
    assert (stored.source, stored.document, stored.description) == ("# mine\na: 1", {"a": 1}, "first try")
    assert stored.created_at > 1.7e9


def test_a_version_equal_to_the_newest_is_not_stored_again(database: Database) -> None:
    insert(database, new_version(digest="1"), new_version(digest="2"))

    with database.write() as session:
        equal, again = ConfigRepository(session).insert(**new_version(digest="2"))
        older, created = ConfigRepository(session).insert(**new_version(digest="1"))

    assert (equal.version, again) == (2, False)
    assert (older.version, created) == (3, True)


@pytest.mark.parametrize("version", [None, 1, 7])
def test_what_is_not_stored_is_not_found(database: Database, version: int | None) -> None:
    with database.read() as session, pytest.raises(ConfigNotFound):
        ConfigRepository(session).get_or_raise("nobody", version)


def test_the_list_of_names_holds_the_newest_version_of_each(database: Database) -> None:
    insert(database, new_version("b", "1"), new_version("a", "1"), new_version("b", "2"), new_version("c", "1"))

    with database.read() as session:
        page = ConfigRepository(session).list_names(BY_NAME)

    assert [(item.name, item.version) for item in page.items] == [("a", 1), ("b", 2), ("c", 1)]
    assert page.next is None


def test_pages_of_names_partition_the_list(database: Database) -> None:
    insert(database, *(new_version(f"n{number}", "1") for number in range(7)))
    names: list[str] = []
    after = None

    with database.read() as session:
        for _ in range(3):
            page = ConfigRepository(session).list_names(ListQuery(BY_NAME.order, limit=3, after=after))
            names += [item.name for item in page.items]
            after = page.next

    assert names == [f"n{number}" for number in range(7)]
    assert after is None


def test_names_are_filtered(database: Database) -> None:
    insert(database, new_version("walker-1"), new_version("walker-2"), new_version("ball"))
    query = ListQuery(BY_NAME.order, (Condition("name", Operator.EQ, "walker*"),))

    with database.read() as session:
        page = ConfigRepository(session).list_names(query)
        with pytest.raises(InvalidQuery):
            ConfigRepository(session).list_names(ListQuery(Order("digest")))

    assert [item.name for item in page.items] == ["walker-1", "walker-2"]


def test_versions_are_listed_newest_first_in_pages(database: Database) -> None:
    insert(database, *(new_version(digest=str(number)) for number in range(5)), new_version("other"))

    with database.read() as session:
        first = ConfigRepository(session).list_versions("walker", ListQuery(NEWEST_FIRST.order, limit=3))
        rest = ConfigRepository(session).list_versions(
            "walker", ListQuery(NEWEST_FIRST.order, limit=3, after=first.next)
        )

    assert [item.version for item in (*first.items, *rest.items)] == [5, 4, 3, 2, 1]
    assert rest.next is None


def test_versions_of_an_unknown_name_are_not_found(database: Database) -> None:
    with database.read() as session, pytest.raises(ConfigNotFound):
        ConfigRepository(session).list_versions("nobody", NEWEST_FIRST)


def test_lists_do_not_read_documents(database: Database) -> None:
    insert(database, new_version())

    with database.read() as session:
        (item,) = ConfigRepository(session).list_names(BY_NAME).items
        with pytest.raises(InvalidRequestError):
            _ = item.resolved


def test_writers_at_once_get_a_version_each(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: insert(database, new_version(digest=str(number))), range(24)))

    with database.read() as session:
        page = ConfigRepository(session).list_versions("walker", NEWEST_FIRST)
    assert [item.version for item in page.items] == list(range(24, 0, -1))


class LateReader(ConfigRepository):
    """Doesn't see the newest version the first `late` times, as if another writer committed right after the look."""

    late = 1

    def newest(self, name: str, version: int | None = None) -> ConfigVersion | None:
        if self.late:
            self.late -= 1
            return None
        return super().newest(name, version)


def test_a_writer_that_lost_the_race_for_a_number_takes_the_next(database: Database) -> None:
    insert(database, new_version(digest="theirs"))

    with database.write() as session:
        stored, created = LateReader(session).insert(**new_version(digest="mine"))

    assert (stored.version, created) == (2, True)


def test_a_writer_that_lost_the_race_to_an_equal_version_returns_that(database: Database) -> None:
    insert(database, new_version(digest="ours"))

    with database.write() as session:
        stored, created = LateReader(session).insert(**new_version(digest="ours"))

    assert (stored.version, created) == (1, False)


def test_a_writer_that_always_loses_says_so(database: Database) -> None:
    insert(database, new_version(digest="theirs"))

    with database.write() as session:
        repository = LateReader(session)
        repository.late = 100
        with pytest.raises(IntegrityError):
            repository.insert(**new_version(digest="mine"))
