"""Restarts are counted as ML-Agents counts them, logs are kept, and games use no proxy for this machine."""

from pathlib import Path

import pytest

from ludus.games.process import (
    ExecutableNotFound,
    PlayerLog,
    RestartQuota,
    arguments,
    find_executable,
    player_environment,
)
from tests.clock import Clock


def test_restarts_are_limited_within_a_period() -> None:
    clock = Clock()
    quota = RestartQuota(lifetime=10, rate=2, period_seconds=60, clock=clock)

    taken = []
    for clock.now in (0, 1, 2, 61, 62, 63):
        taken.append(quota.take())

    assert taken == [True, True, False, True, True, False]


def test_restarts_are_limited_over_a_lifetime() -> None:
    clock = Clock()
    quota = RestartQuota(lifetime=2, rate=1, period_seconds=60, clock=clock)

    taken = []
    for clock.now in (0, 100, 200):
        taken.append(quota.take())

    assert taken == [True, True, False]


def test_minus_one_means_any_number() -> None:
    assert all(RestartQuota(lifetime=-1, rate=-1).take() for _ in range(50))
    assert not RestartQuota(lifetime=0, rate=-1).take()
    assert not RestartQuota(lifetime=-1, rate=0).take()


def test_logs_of_earlier_processes_are_put_aside(tmp_path: Path) -> None:
    log = PlayerLog(tmp_path / "logs", worker=3)
    for life in ("first", "second", "third"):
        log.make_room()
        log.player.write_text(life)

    kept = {file.name: file.read_text() for file in log.folder.iterdir()}
    assert kept == {"Player-3.log": "third", "Player-3.1.log": "first", "Player-3.2.log": "second"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"no_proxy": "localhost,127.0.0.1,::1", "NO_PROXY": "localhost,127.0.0.1,::1"}),
        (
            {"NO_PROXY": "intra.net,localhost", "HTTP_PROXY": "http://proxy:3128"},
            {
                "NO_PROXY": "intra.net,localhost,127.0.0.1,::1",
                "no_proxy": "localhost,127.0.0.1,::1",
                "HTTP_PROXY": "http://proxy:3128",
            },
        ),
        # gRPC reads this one alone where it is set.
        (
            {"no_grpc_proxy": "a"},
            {
                "no_grpc_proxy": "a,localhost,127.0.0.1,::1",
                "no_proxy": "localhost,127.0.0.1,::1",
                "NO_PROXY": "localhost,127.0.0.1,::1",
            },
        ),
    ],
)
def test_a_games_calls_to_this_machine_go_through_no_proxy(before: dict[str, str], after: dict[str, str]) -> None:
    assert player_environment(before) == after


def build(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("system", "file"),
    [
        ("linux", "Game.x86_64"),
        ("linux", "Game.x86"),
        ("linux", "Game"),
        ("darwin", "Game.app/Contents/MacOS/Game"),
        ("darwin", "Game.app/Contents/MacOS/another name"),
        ("win32", "Game.exe"),
    ],
)
@pytest.mark.parametrize("named", ["Game", "Game.app", "Game.exe", "Game.x86_64", "Game.x86"])
def test_any_of_a_builds_names_leads_to_its_file(system: str, file: str, named: str, tmp_path: Path) -> None:
    expected = build(tmp_path / file)

    assert find_executable(tmp_path / named, system) == expected


def test_64_bits_come_before_32(tmp_path: Path) -> None:
    build(tmp_path / "Game.x86")
    expected = build(tmp_path / "Game.x86_64")

    assert find_executable(tmp_path / "Game", "linux") == expected


def test_the_file_that_was_named_comes_first(tmp_path: Path) -> None:
    expected = build(tmp_path / "Game.x86")
    build(tmp_path / "Game.x86_64")

    assert find_executable(tmp_path / "Game.x86", "linux") == expected


def test_dots_in_a_name_are_no_extension(tmp_path: Path) -> None:
    expected = build(tmp_path / "Game v1.2.x86_64")

    assert find_executable(tmp_path / "Game v1.2", "linux") == expected


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build(tmp_path / "builds" / "Game.x86_64")
    monkeypatch.chdir(tmp_path)

    assert find_executable(Path("builds/Game"), "linux") == expected


@pytest.mark.parametrize(
    ("system", "looked"),
    [
        ("linux", ["Game.x86_64", "Game.x86", "Game"]),
        ("win32", ["Game.exe"]),
        ("darwin", ["Game.app/Contents/MacOS/Game"]),
    ],
)
def test_what_is_not_found_says_where_it_was_looked_for(system: str, looked: list[str], tmp_path: Path) -> None:
    with pytest.raises(ExecutableNotFound) as error:
        find_executable(tmp_path / "Game", system)

    assert all(str(tmp_path / file) in str(error.value) for file in looked)


def test_a_file_that_may_not_be_executed_says_so(tmp_path: Path) -> None:
    build(tmp_path / "Game.x86_64", mode=0o644)

    with pytest.raises(ExecutableNotFound, match=r"chmod \+x"):
        find_executable(tmp_path / "Game", "linux")


def test_arguments_stand_in_ml_agents_order() -> None:
    log = Path("logs/Player-0.log")

    assert arguments(5005, log, ("--level", "3"), no_graphics=True) == [
        *("-nographics", "-batchmode", "--mlagents-port", "5005"),
        *("-logFile", str(log), "--level", "3"),
    ]
    assert arguments(5005, None) == ["--mlagents-port", "5005"]


@pytest.mark.parametrize("own", ["-logFile", "-logfile", "-LOGFILE"])
def test_a_log_file_that_the_user_names_is_the_only_one(own: str) -> None:
    assert arguments(5005, Path("Player-0.log"), (own, "mine.log")) == ["--mlagents-port", "5005", own, "mine.log"]
