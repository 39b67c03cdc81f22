"""Commands that read files of text: in every encoding and of every kind, read or refused in one sentence."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.cli.exits import Exit
from tests.ludus.cli.conftest import Invoke

GOOD = "behaviors:\n  A:\n    trainer_type: ppo\n"
COMMANDS = (
    "run create --validate-only FILE",
    "config create stored FILE",
    "config upgrade FILE",
    "config upgrade GOOD --sampler FILE",
    "config upgrade GOOD --curriculum FILE",
    LEARN := "learn FILE --run-id read --env /nonexistent",
    "fake-server --script FILE",
)
"""All commands that take a text."""
CONFIGURATIONS = COMMANDS[:3]


@pytest.fixture
def typed(tmp_path: Path, cli: Invoke, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str]]:
    """Type a command with FILE and GOOD as paths; return its exit code and its words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)

    def run(command: str) -> tuple[int, str]:
        words = command.replace("FILE", str(tmp_path / "file.yaml")).replace("GOOD", "good.yaml").split()
        ended = cli(*words)
        assert "Traceback" not in ended.output
        return ended.exit_code, ended.output.replace("\n", " ")

    return run


BAD = {
    "UTF-16": (GOOD.encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "UTF-16 without its mark": (GOOD.encode("utf-16-le"), "has zero bytes, as UTF-16 has"),
    "UTF-32": (GOOD.encode("utf-32"), "is UTF-32 text"),
    "cp1252": (GOOD.replace("A:", "Jäger:").encode("cp1252"), "line 2: the byte 0xE4 is not UTF-8 (in Windows' cp1252"),
    "not text": (b"PK\x03\x04" + bytes(range(256)), "has zero bytes, as no text has"),
    "huge": (b"# padding\n" * 500_000, "has more than 4 MiB"),
}


@pytest.mark.parametrize(
    ("command", "kind"), [*((COMMANDS[0], kind) for kind in BAD), *((command, "UTF-16") for command in COMMANDS[1:])]
)
def test_what_is_no_text_in_utf_8_is_refused_with_what_it_is(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], command: str, kind: str
) -> None:
    content, says = BAD[kind]
    (tmp_path / "file.yaml").write_bytes(content)

    code, words = typed(command)

    assert code in {Exit.USAGE, Exit.REFUSED}
    assert says in " ".join(words.split())


@pytest.mark.parametrize(
    ("command", "kind"),
    [*((command, "missing") for command in COMMANDS), (COMMANDS[0], "folder"), (COMMANDS[0], "deep"), (LEARN, "deep")],
)
def test_what_is_no_file_and_what_is_too_deep_is_refused(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], command: str, kind: str
) -> None:
    if kind == "folder":
        (tmp_path / "file.yaml").mkdir()
    elif kind == "deep":
        (tmp_path / "file.yaml").write_text("[" * 100_000)

    code, _ = typed(command)

    assert code in {Exit.USAGE, Exit.REFUSED}


def test_a_pipe_is_read_to_its_end(tmp_path: Path, typed: Callable[[str], tuple[int, str]]) -> None:
    os.mkfifo(tmp_path / "file.yaml")
    writer = threading.Thread(target=lambda: (tmp_path / "file.yaml").write_text(GOOD))
    writer.start()

    code, _ = typed("run create --validate-only FILE")
    writer.join()

    assert code == Exit.OK


def test_a_pipe_to_which_nothing_writes_is_refused(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.cli.files.WRITER_SECONDS", 0.1)
    os.mkfifo(tmp_path / "file.yaml")

    code, words = typed("config create stored FILE")

    assert code == Exit.USAGE
    assert "nothing was written to it" in words


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(), GOOD.replace("\n", "\r").encode()]
)
@pytest.mark.parametrize("command", CONFIGURATIONS)
def test_marks_and_line_ends_of_other_systems_are_read(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], command: str, content: bytes
) -> None:
    (tmp_path / "file.yaml").write_bytes(content)

    assert typed(command)[0] == Exit.OK


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD.replace("    trainer", "\ttrainer"), "file.yaml:3: (document): a tab stands where the line is indented"),
        (f"```yaml\n{GOOD}```\n", "file.yaml:1: (document): the line is a fence of Markdown (```)"),
        (GOOD.replace("ppo", "@ppo"), "file.yaml:3: (document): no value can begin with the character '@'"),
    ],
)
@pytest.mark.parametrize("command", CONFIGURATIONS)
def test_a_character_that_yaml_does_not_take_is_named_with_its_line(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], command: str, content: str, says: str
) -> None:
    (tmp_path / "file.yaml").write_text(content)

    code, words = typed(command)

    assert (code, says in words) == (Exit.REFUSED, True), words


@pytest.mark.parametrize("command", ["demonstration upload FILE", "checkpoint upload FILE"])
def test_a_pipe_is_no_recording_and_no_checkpoint(
    tmp_path: Path, typed: Callable[[str], tuple[int, str]], command: str
) -> None:
    os.mkfifo(tmp_path / "file.yaml")

    code, words = typed(command)

    assert (code, "is a pipe or a device" in words) == (Exit.USAGE, True)
