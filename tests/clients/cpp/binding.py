"""The C ABI by ctypes, as a binding of another language uses it; as a program, a game that plays by it.

`python binding.py LIBRARY` plays two agents with a picture, a vector, mixed actions, masks, groups and outcomes.
"""

import ctypes
import sys
from array import array
from pathlib import Path
from typing import Any

START, ACTIONS, NOTHING, FINISHED, ERROR = 0, 1, 2, 3, -1
FLOAT32, UINT8, GOAL = 0, 1, 2


class Columns(ctypes.Structure):
    """`ludus_columns`."""

    _fields_ = (
        ("count", ctypes.c_size_t),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "agents",
                "rewards",
                "observations",
                "masks",
                "groups",
                "group_rewards",
                "truncated",
                "outcomes",
            )
        ),
    )


def load(library: Path) -> Any:
    """Return the library with the types of its functions."""
    c = ctypes.CDLL(str(library))
    text, size, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "open": (pointer, [text, text, text, text]),
        "close": (None, [pointer]),
        "behavior": (ctypes.c_int, [pointer, text, ctypes.c_uint32, pointer, size]),
        "observation": (ctypes.c_int, [pointer, size, text, pointer, size, ctypes.c_int]),
        "next": (ctypes.c_int, [pointer, ctypes.c_double]),
        "ask": (ctypes.c_int, [pointer, size, pointer]),
        "end": (ctypes.c_int, [pointer, size, pointer]),
        "report": (ctypes.c_int, [pointer, text, ctypes.c_float, ctypes.c_int]),
        "actions": (size, [pointer, size, *[ctypes.POINTER(ctypes.c_void_p)] * 3]),
        "parameter": (ctypes.c_float, [pointer, text, ctypes.c_float]),
        "seed": (ctypes.c_int64, [pointer]),
        "last_error": (text, []),
        "last_code": (text, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(c, f"ludus_{name}")
        function.restype, function.argtypes = result, arguments
    return c


def address(values: "array[Any]") -> int:
    """Return where the elements of an array are."""
    return values.buffer_info()[0]


def columns(observations: list["array[Any]"], **given: "array[Any]") -> tuple[Columns, object]:
    """Return columns of agents, and what they point to, which has to live as long."""
    pointers = array("Q", map(address, observations))
    filled = Columns(count=len(given["agents"]), observations=address(pointers))
    for name, values in given.items():
        setattr(filled, name, address(values))
    return filled, (pointers, observations, given)


def moth(c: Any, client: Any) -> None:
    """Add a behavior with all kinds of columns."""
    branches, picture, speed = array("I", [3, 2]), array("I", [1, 20, 20]), array("I", [2])
    assert c.ludus_behavior(client, b"Moth", 2, address(branches), 2) == 0
    assert c.ludus_observation(client, 0, b"eye", address(picture), 3, UINT8) == 0
    assert c.ludus_observation(client, 0, b"speed", address(speed), 1, FLOAT32 | GOAL) == 1


def play(c: Any, client: Any) -> int:
    """Play to the end of the run; return the last event."""
    agents, moves = array("i", [7, 3]), 0
    masks, groups, outcomes = array("B", [1, 0, 1, 1, 1] * 2), array("i", [1, 1]), array("B", [1, 3])
    answered, continuous, discrete = (ctypes.c_void_p() for _ in range(3))
    while (event := c.ludus_next(client, -1.0)) not in {FINISHED, ERROR}:
        seen = [array("B", [moves % 256] * 800), array("f", [0.5, -1.0, moves, 0.0])]
        rewards = array("f", [0.5, -0.5])
        if event == ACTIONS:
            count = c.ludus_actions(client, 0, answered, continuous, discrete)
            choices = (ctypes.c_int32 * (2 * count)).from_address(discrete.value or 0)
            floats = (ctypes.c_float * (2 * count)).from_address(continuous.value or 0)
            assert all(0 <= choice < (3, 2)[index % 2] for index, choice in enumerate(choices))
            assert all(choice != 1 for choice in choices[::2])  # the mask forbids it
            assert all(-1 <= value <= 1 for value in floats)
            numbers = (ctypes.c_int32 * count).from_address(answered.value or 0)
            agents, moves = array("i", numbers), moves + 1
            rows = range(count)
            seen = [array("B", [moves % 256] * 400 * count), array("f", [0.5, -1.0] * count)]
            rewards, groups = array("f", [0.5 for _ in rows]), array("i", [1 for _ in rows])
            masks, outcomes = array("B", [1, 0, 1, 1, 1] * count), array("B", [1 for _ in rows])
            if moves % 10 == 0:
                ends, kept = columns(
                    seen,
                    agents=agents,
                    rewards=rewards,
                    groups=groups,
                    group_rewards=rewards,
                    truncated=array("B", [moves % 20 == 0] * count),
                    outcomes=outcomes,
                )
                assert c.ludus_end(client, 0, ctypes.byref(ends)) == 0, c.ludus_last_error()
                assert c.ludus_report(client, b"Moth/Moves", moves, 2) == 0
                del kept
        else:
            agents, groups = array("i", [7, 3]), array("i", [1, 1])
            masks = array("B", [1, 0, 1, 1, 1] * 2)
        asked, kept = columns(seen, agents=agents, rewards=rewards, groups=groups, masks=masks)
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == 0, c.ludus_last_error()
        del kept
    return event


def main() -> int:
    """Play in the run that the environment names."""
    c = load(Path(sys.argv[1]))
    client = c.ludus_open(None, None, None, None)
    assert client, c.ludus_last_error()
    moth(c, client)
    event = play(c, client)
    if event == ERROR:
        sys.stderr.write(f"{c.ludus_last_code().decode()}: {c.ludus_last_error().decode()}\n")
    c.ludus_close(client)
    return 0 if event == FINISHED else 1


if __name__ == "__main__":
    sys.exit(main())
