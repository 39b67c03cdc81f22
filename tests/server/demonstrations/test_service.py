"""Rows of demonstrations, and the ids in configurations."""

from pathlib import Path
from typing import Any

import pytest

from ludus.demonstrations import Demonstration as Shown
from ludus.demonstrations import write
from server.config.resolution import resolve
from server.demonstrations.files import DemonstrationFiles
from server.demonstrations.repository import DemonstrationRepository
from server.demonstrations.service import DemonstrationService
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector

UNKNOWN = f"dem_{'0' * 26}"


def add(database: Database, folder: Path, shown: Shown | None = None, name: str | None = None) -> str:
    """Store a demonstration; return its id."""
    write(shown or make_demonstration(), folder / "shown.npz")
    files = DemonstrationFiles(FolderStore(folder / "artifacts"), 1_000_000)
    with (
        files.publish(folder / "shown.npz", files.inspect(folder / "shown.npz")) as stored,
        database.write() as session,
    ):
        row = DemonstrationService(session).add(stored, name, {})
    assert stored.kept
    return row.id


def check(database: Database, document: dict[str, Any]) -> list[str]:
    with database.write() as session:
        return DemonstrationService(session).check(resolve(document), lock=True)


def problems(database: Database, document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as caught:
        check(database, document)
    return {problem.path: problem.code for problem in caught.value.problems}


def test_a_row_says_what_the_file_holds(database: Database, tmp_path: Path) -> None:
    shown = make_demonstration(make_spec(vector(3), continuous=1, name="Walker?team=1"), lengths=(4, 6))

    demonstration = add(database, tmp_path, shown, "expert")

    with database.read() as session:
        row = DemonstrationRepository(session).get(demonstration)
    assert (row.name, row.behavior, row.format) == ("expert", "Walker?team=1", "ludus")
    assert (row.transitions, row.episodes) == (10, 2)
    assert row.mean_return == pytest.approx(shown.returns.mean())
    assert row.spec["observations"][0]["shape"] == [3]
    assert row.size == (tmp_path / "shown.npz").stat().st_size


def test_a_demonstration_without_a_name_is_called_like_its_id(database: Database, tmp_path: Path) -> None:
    demonstration = add(database, tmp_path)

    with database.read() as session:
        assert DemonstrationRepository(session).get(demonstration).name == demonstration


def test_a_transaction_that_fails_leaves_no_file(database: Database, tmp_path: Path) -> None:
    write(make_demonstration(), tmp_path / "shown.npz")
    files = DemonstrationFiles(FolderStore(tmp_path / "artifacts"), 1_000_000)

    def fail() -> None:
        inspected = files.inspect(tmp_path / "shown.npz")
        with files.publish(tmp_path / "shown.npz", inspected) as stored, database.write() as session:
            DemonstrationService(session).add(stored, None, {})
            raise RuntimeError("the transaction fails")

    with pytest.raises(RuntimeError):
        fail()

    assert list((tmp_path / "artifacts" / "demonstrations").iterdir()) == []


def test_every_place_that_names_demonstrations_is_checked(database: Database, tmp_path: Path) -> None:
    known = add(database, tmp_path)
    gail = {"demonstrations": [known, UNKNOWN]}
    document = {
        "default_settings": {"behavioral_cloning": gail},
        "behaviors": {
            "A": {"trainer_type": "clone", "demonstrations": [UNKNOWN]},
            "B": {"behavioral_cloning": None, "reward_signals": {"gail": [{"demonstrations": [known]}, gail]}},
            "C": {"behavioral_cloning": None, "reward_signals": {"gail": gail}},
        },
    }

    assert problems(database, document) == {
        "default_settings.behavioral_cloning.demonstrations[1]": "not_found",
        "behaviors.A.demonstrations[0]": "not_found",
        "behaviors.B.reward_signals.gail[1].demonstrations[1]": "not_found",
        "behaviors.C.reward_signals.gail.demonstrations[1]": "not_found",
    }


def test_demonstrations_of_one_section_have_to_fit_each_other(database: Database, tmp_path: Path) -> None:
    two = add(database, tmp_path, make_demonstration(make_spec(vector(2), continuous=1)))
    three = add(database, tmp_path, make_demonstration(make_spec(vector(3), continuous=1)))
    together = {"behaviors": {"A": {"trainer_type": "clone", "demonstrations": [two, three]}}}
    apart = {
        "behaviors": {
            "A": {"trainer_type": "clone", "demonstrations": [two]},
            "B": {"trainer_type": "clone", "demonstrations": [three]},
        }
    }

    assert problems(database, together) == {"behaviors.A.demonstrations[1]": "contradiction"}
    assert check(database, apart) == sorted([two, three])


def test_demonstrations_of_all_sections_of_a_behavior_have_to_fit_each_other(
    database: Database, tmp_path: Path
) -> None:
    two = add(database, tmp_path, make_demonstration(make_spec(vector(2), continuous=1)), "two numbers")
    three = add(database, tmp_path, make_demonstration(make_spec(vector(3), continuous=1)), "three numbers")
    signals = {"extrinsic": {}, "gail": [{"demonstrations": [two]}, {"demonstrations": [three]}]}
    document = {
        "behaviors": {
            "A": {"behavioral_cloning": {"demonstrations": [three]}, "reward_signals": {"gail": signals["gail"][0]}},
            "B": {"reward_signals": signals},
            "C": {"behavioral_cloning": {"demonstrations": [three]}},
        },
    }

    with pytest.raises(InvalidConfig) as caught:
        check(database, document)

    found = {problem.path: problem for problem in caught.value.problems}
    in_a, in_b = (
        "behaviors.A.behavioral_cloning.demonstrations[0]",
        "behaviors.B.reward_signals.gail[1].demonstrations[0]",
    )
    assert {path: problem.code for path, problem in found.items()} == {in_a: "contradiction", in_b: "contradiction"}
    for problem in found.values():
        for part in (f"two numbers ({two})", f"three numbers ({three})", "(2,)", "(3,)"):
            assert part in problem.message
    assert check(database, {"behaviors": {"C": document["behaviors"]["C"]}}) == [three]


def test_the_legacy_pairing_is_for_recordings_of_ml_agents(database: Database, tmp_path: Path) -> None:
    """In a file of ours the pairs are what they are; to ignore the key would train on others than were asked for."""
    own = add(database, tmp_path)
    gail = {"demonstrations": [own], "legacy_pairing": True}

    assert problems(database, {"behaviors": {"A": {"reward_signals": {"gail": gail}}}}) == {
        "behaviors.A.reward_signals.gail.legacy_pairing": "contradiction"
    }
    assert check(database, {"behaviors": {"A": {"reward_signals": {"gail": {**gail, "legacy_pairing": False}}}}}) == [
        own
    ]


def test_the_legacy_pairing_of_recordings_of_ml_agents_is_accepted(database: Database, tmp_path: Path) -> None:
    write(make_demonstration(), tmp_path / "shown.demo")
    files = DemonstrationFiles(FolderStore(tmp_path / "artifacts"), 1_000_000)
    with (
        files.publish(tmp_path / "shown.demo", files.inspect(tmp_path / "shown.demo")) as stored,
        database.write() as session,
    ):
        theirs = DemonstrationService(session).add(stored, None, {}).id
    cloning = {"demonstrations": [theirs], "legacy_pairing": True}

    assert check(database, {"behaviors": {"A": {"behavioral_cloning": cloning}}}) == [theirs]
