"""Problems between a game and its run, each with a stable code and a sentence with the remedy.

Only the machine of a game knows whether its process lives, whether it ever called and how it was started. The server
reports problems with versions, specs and data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ludus.protocol.codes import CloseCode
from ludus.sdk.errors import Failure

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")

HOOK_FAILED: Final = "hook_failed"
CHANNEL_OF_THE_RUN: Final = "channel_of_the_run"

SENTENCES: Final[Mapping[str, str]] = {
    "game_quit": "the game ended the session by itself, before the end of the run",
    # The game makes no call after the answer to its first one.
    "second_call_missing": "the game made its first call and then none for {seconds:g} s: its ML-Agents package "
    "refused the handshake, most likely for its version, and plays without training; its log has the reason. Packages "
    "from 1.0 on (communication API 1.x) can train",
    "stopped_calling": "the game has not called for {seconds:g} s: it hangs, loads, or no agent of its scene asks for "
    "decisions (an Agent needs a DecisionRequester, or to call RequestDecision)",
    "foreign_game": "a second game dialled port {port}, where one plays already, and was sent away: it was started for "
    "another run's port, or by hand; each game needs a port of its own",
    # A call that belongs to no session.
    "stray_call": "a game called port {port} in the middle of a session that is not held here, and was sent away: it "
    "was started for another run's port, or outlived its bridge; start it again",
    "port_taken": "port {port} is taken, by another run or by mlagents-learn perhaps; using {instead} instead",
    "editor_port_taken": "port {port}, which the Editor dials, is taken, by another `ludus unity` or by mlagents-learn "
    "perhaps: end that, or set another port in Project Settings > ML-Agents and here with --editor-port",
    "no_port": "no port from {first} to {last} is free; choose others with --base-port",
    "port_in_arguments": "--env-args must not contain {argument}: each build gets a port of its own; --base-port "
    "chooses the first",
    "reply_too_large": "the reply to the game has {size} bytes, and Unity's client takes {limit}: the game will quit "
    "with ResourceExhausted unless its package was changed; put fewer agents into one build",
    "message_too_large": "the game's message is larger than the server takes ({details}): put fewer agents into one "
    "build, or make its pictures smaller",
    "cameras_without_graphics": "{behavior} has visual observations ({cameras}), and the game was started without "
    "graphics: cameras show nothing there; leave out --no-graphics (on a machine without a screen, run under Xvfb)",
    HOOK_FAILED: "the hook of side channels failed: its `{method}` raised {error}; the log has the traceback",
    CHANNEL_OF_THE_RUN: "the `pending` of the hook of side channels returned a frame of channel {channel}, which the "
    "run uses: return raw bytes on channels of your own, or float properties",
}
"""Code -> sentence, with the facts to fill in."""

_PERMANENT: Final = {
    *("editor_port_taken", "no_port", "port_in_arguments", "message_too_large"),
    *(HOOK_FAILED, CHANNEL_OF_THE_RUN),
}
"""Codes of failures that a restart of the game does not end."""

_HOPELESS: Final = {
    CloseCode.PROTOCOL_VERSION,
    CloseCode.BAD_SPEC,
    CloseCode.SPEC_CONFLICT,
    CloseCode.BEHAVIOR_NOT_CONFIGURED,
    CloseCode.TOO_MANY_AGENTS,
    CloseCode.MESSAGE_TOO_LARGE,
    CloseCode.INTERNAL_ERROR,
    HOOK_FAILED,
    CHANNEL_OF_THE_RUN,
}
"""Errors in the game, in the code beside it, or a server's in every session: a new process would end the same way."""


def failure(code: str, **facts: object) -> Failure:
    """Return the failure with this code; `facts` fill in its sentence. Raises KeyError where one is missing."""
    return Failure(code, SENTENCES[code].format(**facts), permanent=code in _PERMANENT)


def never_dialled(executable: Path, port: int, seconds: float, proxies: Sequence[str]) -> Failure:
    """Describe a process that runs but has not called. `proxies`: variables that are set here."""
    proxy = f", or to ignore the proxy in {' and '.join(proxies)}" if proxies else ""
    return Failure(
        "never_dialled",
        f"{executable.name} runs, but has not dialled 127.0.0.1:{port} within {seconds:g} s: check that its first "
        "scene has an active Agent whose Behavior Type is Default, that it is a desktop build with the Mono backend "
        f"(IL2CPP cannot train before ML-Agents 4.1), and raise --timeout-wait if it takes longer to load{proxy}",
        permanent=True,
    )


def no_editor_plays(port: int, seconds: float, proxies: Sequence[str]) -> Failure:
    """Describe an Editor that has not called."""
    proxy = f", and that {' and '.join(proxies)} of the Editor's environment exempts localhost" if proxies else ""
    return Failure(
        "no_editor_plays",
        f"still waiting for the Editor on port {port} ({seconds:g} s): press Play; if that was done, check that the "
        "scene has an active Agent whose Behavior Type is Default, that Project Settings > ML-Agents connects to a "
        f"trainer on port {port}{proxy}",
        permanent=False,
    )


def exited(code: int, *, dialled: bool, last_lines: str) -> Failure:
    """Describe a process that ended before the run did. `last_lines`: the end of its log and of its output."""
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    when = "" if dialled else " before it had dialled"
    sentence = f"the game {how}{when}; {last_lines}" if last_lines else f"the game {how}{when}, and left no log"
    return Failure("exited" if dialled else "exited_early", sentence, permanent=False)


def proxies_in(environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables that send connections through a proxy."""
    return sorted(name for name, value in environment.items() if name.lower() in PROXY_VARIABLES and value)


def is_hopeless(code: str) -> bool:
    """Whether a session that ended with this code would end the same way with the game's next process."""
    return code in _HOPELESS
