"""Problems between a game and its run, each with a stable code and a sentence that says what to do.

Only the machine on which a game runs knows whether its process lives, whether it ever called and how it was started.
The server reports what it knows itself: versions, specs, data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from ludus.protocol.codes import CloseCode
from ludus.sdk.errors import Failure

UNITY_RECEIVES_BYTES: Final = 4 << 20
"""Largest message that Unity's gRPC client takes, unless somebody changed its package."""

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")

HOOK_FAILED: Final = "hook_failed"
CHANNEL_OF_THE_RUN: Final = "channel_of_the_run"

_HOPELESS: Final = {
    CloseCode.PROTOCOL_VERSION,
    CloseCode.BAD_SPEC,
    CloseCode.SPEC_CONFLICT,
    CloseCode.BEHAVIOR_NOT_CONFIGURED,
    CloseCode.TOO_MANY_AGENTS,
    CloseCode.MESSAGE_TOO_LARGE,
    HOOK_FAILED,
    CHANNEL_OF_THE_RUN,
}
"""Problems of how the game, or the code beside it, was built: a new process would end in the same way."""


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


def exited(code: int, *, dialled: bool, last_lines: str) -> Failure:
    """Describe a process that ended while the run goes on. `last_lines`: what it logged and printed at its end."""
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    when = "" if dialled else " before it had dialled"
    sentence = f"the game {how}{when}; {last_lines}" if last_lines else f"the game {how}{when}, and left no log"
    return Failure("exited" if dialled else "exited_early", sentence, permanent=False)


def quit_by_itself() -> Failure:
    """Describe a game that said goodbye while the run goes on."""
    return Failure("game_quit", "the game ended the conversation by itself, before the run was over", permanent=False)


def second_call_missing(seconds: float) -> Failure:
    """Describe a game that makes no call after the answer to its first one."""
    return Failure(
        "second_call_missing",
        f"the game made its first call and then none for {seconds:g} s: its ML-Agents package refused the handshake, "
        "most likely for its version, and plays without training; its log tells. Packages from 1.0 on (communication "
        "API 1.x) can train",
        permanent=False,
    )


def stopped_calling(seconds: float) -> Failure:
    """Describe a game that hangs, or whose agents request no decisions."""
    return Failure(
        "stopped_calling",
        f"the game has not called for {seconds:g} s: it hangs, loads, or no agent of its scene asks for decisions (an "
        "Agent needs a DecisionRequester, or to call RequestDecision)",
        permanent=False,
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


def foreign_game(port: int) -> Failure:
    """Describe a second game on one port."""
    return Failure(
        "foreign_game",
        f"a second game dialled port {port}, where one plays already, and was sent away: it was started for another "
        "run's port, or by hand; each game needs a port of its own",
        permanent=False,
    )


def stray_call(port: int) -> Failure:
    """Describe a call that belongs to no conversation."""
    return Failure(
        "stray_call",
        f"a game called port {port} in the middle of a conversation that is not held here, and was sent away: it was "
        "started for another run's port, or outlived its bridge; start it again",
        permanent=False,
    )


def port_taken(port: int, instead: int) -> Failure:
    """Describe a port that somebody else listens on."""
    return Failure(
        "port_taken",
        f"port {port} is taken, by another run or by mlagents-learn perhaps; using {instead} instead",
        permanent=False,
    )


def editor_port_taken(port: int) -> Failure:
    """Describe an Editor's port that somebody else listens on."""
    return Failure(
        "editor_port_taken",
        f"port {port}, which the Editor dials, is taken, by another `ludus unity` or by mlagents-learn perhaps: end "
        "that, or set another port in Project Settings > ML-Agents and here with --editor-port",
        permanent=True,
    )


def no_port(first: int, last: int) -> Failure:
    """Describe a machine without free ports."""
    return Failure("no_port", f"no port from {first} to {last} is free; choose others with --base-port", permanent=True)


def port_in_arguments(argument: str) -> Failure:
    """Describe arguments of the user that contradict ours."""
    return Failure(
        "port_in_arguments",
        f"--env-args must not contain {argument}: each build gets a port of its own; --base-port chooses the first",
        permanent=True,
    )


def reply_too_large(size: int) -> Failure:
    """Describe a reply that Unity will not take."""
    return Failure(
        "reply_too_large",
        f"the reply to the game has {size} bytes, and Unity's client takes {UNITY_RECEIVES_BYTES}: the game will quit "
        "with ResourceExhausted unless its package was changed; put fewer agents into one build",
        permanent=False,
    )


def message_too_large(details: str) -> Failure:
    """Describe a message of the game that the server will not take."""
    return Failure(
        CloseCode.MESSAGE_TOO_LARGE,
        f"the game's message is larger than the server takes ({details}): put fewer agents into one build, or make "
        "its pictures smaller",
        permanent=True,
    )


def cameras_without_graphics(behavior: str, cameras: int) -> Failure:
    """Describe cameras that show nothing."""
    what = "a visual observation" if cameras == 1 else f"{cameras} visual observations"
    return Failure(
        "cameras_without_graphics",
        f"{behavior} has {what}, and the game was started without graphics: cameras show nothing there; leave out "
        "--no-graphics (on a machine without a screen, run under Xvfb)",
        permanent=False,
    )


def hook_failed(method: str, error: Exception) -> Failure:
    """Describe a hook of side channels that raised something."""
    return Failure(
        HOOK_FAILED,
        f"the hook of side channels failed: its `{method}` raised {type(error).__name__}: {error}; the log has the "
        "traceback",
        permanent=True,
    )


def channel_of_the_run(channel: UUID) -> Failure:
    """Describe a hook that speaks for the run."""
    return Failure(
        CHANNEL_OF_THE_RUN,
        f"the `pending` of the hook of side channels returned a frame of channel {channel}, on which the run speaks: "
        "return raw bytes on channels of your own, or float properties",
        permanent=True,
    )


def proxies_in(environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables that send connections through a proxy."""
    return sorted(name for name, value in environment.items() if name.lower() in PROXY_VARIABLES and value)


def is_hopeless(code: str) -> bool:
    """Whether a session that ended with this code would end the same way with the game's next process."""
    return code in _HOPELESS
