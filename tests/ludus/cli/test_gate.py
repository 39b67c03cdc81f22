"""`ludus gate`, `ludus evaluate` and aliases against a real server without workers: whole gates are in tests/e2e."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ludus.cli.client import Failure
from ludus.cli.exits import Exit
from ludus.cli.gate import progress_line, promote_to
from ludus.client import Client
from ludus.schemas import MatchResult
from tests.factories import save_checkpoints
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


@pytest.fixture(scope="module")
def saved(world: World) -> list[str]:
    """Return the ids of three checkpoints of a run, oldest first."""
    return save_checkpoints(world.services.database, 100, 200, 300)


def passed(candidate: str, champion: str) -> MatchResult:
    counts = {"games": 2, "wins": 2, "draws": 0, "losses": 0, "max_games": 10}
    bounds = {"elo0": 0.0, "elo1": 1.0, "alpha": 0.05, "beta": 0.05, "llr": 3.0, "llr_lower": -2.9, "llr_upper": 2.9}
    named = {"kind": "match", "behavior": "CartPole", "candidate": candidate, "champion": champion, "verdict": "pass"}
    return MatchResult(**named, **counts, **bounds, paired=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("elo", "low", "high", "said"),
    [
        (0.0, -143.3, 143.3, "2 lost, Elo +0 (-143 to +143), LLR"),
        (None, 77.4, None, "2 lost, Elo +77 or more, LLR"),
        (None, None, -77.4, "2 lost, Elo -77 or less, LLR"),
        (None, None, None, "2 lost, LLR"),
    ],
)
def test_progress_has_the_lead_with_its_interval_or_its_only_end(
    elo: float | None, low: float | None, high: float | None, said: str
) -> None:
    result = replace(passed("ckpt_a", "ckpt_b"), losses=2, elo=elo, elo_low=low, elo_high=high)

    assert said in progress_line(result)


def test_aliases_are_set_shown_compared_and_removed(cli: Invoke, saved: list[str]) -> None:
    made = cli("checkpoint", "alias", "set", "champion", "trained/latest")
    late = cli("checkpoint", "alias", "set", "champion", saved[0], "--expect", saved[1])
    moved = cli("checkpoint", "alias", "set", "champion", saved[1], "--expect", saved[2], "--json")
    listed = as_json(cli("checkpoint", "alias", "list", "--json"))
    shown = cli("checkpoint", "alias", "show", "champion").stdout.strip()
    cli("checkpoint", "alias", "delete", "champion")

    assert made.stdout == f"champion is {saved[2]}\n"
    assert late.exit_code == Exit.REFUSED
    assert "stands for" in late.output
    assert as_json(moved)["version"] == 2
    assert ("champion", saved[1]) in [(each["name"], each["checkpoint_id"]) for each in listed]
    assert shown == saved[1]
    assert cli("checkpoint", "alias", "show", "champion").exit_code == Exit.REFUSED


def test_a_promotion_takes_the_place_of_the_champion_that_was_played(world: World, saved: list[str]) -> None:
    with Client(world.server) as client:
        promote_to(client, "first", passed(saved[1], saved[0]))
        promote_to(client, "first", passed(saved[2], saved[1]))

        assert client.aliases.get("first").checkpoint_id == saved[2]


def test_a_champion_that_was_exchanged_meanwhile_is_not_overthrown(world: World, saved: list[str]) -> None:
    with Client(world.server) as client:
        client.aliases.set("contested", saved[1])

        with pytest.raises(Failure, match="passed, but was not promoted") as refused:
            promote_to(client, "contested", passed(saved[2], saved[0]))

        assert refused.value.exit_code == Exit.REFUSED
        assert client.aliases.get("contested").checkpoint_id == saved[1]


@pytest.mark.parametrize(
    ("command", "form"), [("gate", "trained/latest"), ("evaluate", "id"), ("gate", "id"), ("gate", "alias")]
)
def test_a_job_that_is_repeated_after_its_candidate_was_promoted_passes_without_a_game(
    cli: Invoke, world: World, saved: list[str], tmp_path: Path, command: str, form: str
) -> None:
    report = tmp_path / "report.xml"
    with Client(world.server) as client:
        newest = client.checkpoints.get("trained").id
        client.aliases.set("promoted", newest)
        client.aliases.set("nightly", newest)
    candidate = {"id": newest, "alias": "nightly"}.get(form, form)

    repeated = cli(command, candidate, "--against", "promoted", "--promote", "--junit", str(report))
    asked = cli(command, candidate, "--against", "promoted")

    assert repeated.exit_code == Exit.OK
    assert "promoted is this checkpoint already" in repeated.output
    assert ET.fromstring(report.read_text()).get("errors") == "0"
    assert asked.exit_code == Exit.REFUSED, "nothing was to be promoted"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gate", "trained/latest", "--against", "trained/latest"), "match.champion: is"),
        (("gate", "nobody", "--against", "trained/latest"), "match.candidate: there is no alias 'nobody'"),
        (("evaluate", "trained/latest", "--episodes", "0"), "evaluate.episodes: must be at least 1"),
    ],
)
def test_the_server_refuses_with_the_path(cli: Invoke, saved: list[str], arguments: tuple[str, ...], says: str) -> None:
    refused = cli(*arguments)

    assert refused.exit_code == Exit.REFUSED
    assert says in refused.output


def test_without_simulators_it_says_how_to_start_some_and_a_time_out_cancels_the_run(
    cli: Invoke, world: World, saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.client.backoff.SHORTEST_SECONDS", 30.0)  # the server may be slow, and is not away
    report = tmp_path / "report.xml"

    waited = cli("gate", saved[1], "--against", saved[0], "--name", "idle", "--timeout", "1s", "--junit", str(report))

    assert waited.exit_code == Exit.TIMED_OUT
    assert "ludus simulate GAME --run idle" in waited.output
    with Client(world.server) as client:
        assert client.runs.get("idle").state == "CANCELLED"
    assert ET.fromstring(report.read_text()).get("errors") == "1"


@pytest.mark.long
def test_a_report_has_the_last_words_of_simulators_that_could_not_play(
    cli: Invoke, saved: list[str], tmp_path: Path
) -> None:
    report, game = tmp_path / "report.xml", tmp_path / "broken.py"
    game.write_text(
        "import gymnasium, pathlib\n"
        "def make():\n"
        "    if (there := pathlib.Path(__file__).with_name('made')).exists():\n"
        "        raise ValueError('the level is missing')\n"
        "    there.touch()  # the command tries the game before it asks for a run\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    arguments = ["--threshold", "1", "--game", f"python:{game}:make", "--timeout", "60s", "--junit", str(report)]

    ended = cli("evaluate", saved[1], *arguments)

    assert ended.exit_code == Exit.REFUSED
    error = ET.fromstring(report.read_text()).find("testcase/error")
    assert error is not None
    assert "the level is missing" in error.attrib["message"]
