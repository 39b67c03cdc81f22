"""A "build": dials the port that it is told, plays until it gets a goodbye, and misbehaves on demand.

    game.py --mlagents-port N [-logFile FILE] [--report FILE] [--MISBEHAVIOUR CALLS]

Appends a line of JSON to the report when it starts and when it ends.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.ludus.games.unity.fakes import Game


def is_first_to_crash(report: Path) -> bool:
    """Whether no other process of this test has crashed; those that start together agree on one."""
    try:
        report.with_suffix(".crashed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--mlagents-port", type=int, required=True)
    parser.add_argument("-logFile", dest="log", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--exit-at-once", type=int)
    parser.add_argument("--never-dial", action="store_true")
    parser.add_argument("--crash-at", type=int)
    parser.add_argument("--crash-once-at", type=int)
    parser.add_argument("--quit-at", type=int)
    parser.add_argument("--hang-at", type=int)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--cameras", action="store_true")
    parser.add_argument("-nographics", action="store_true")
    parser.add_argument("-batchmode", action="store_true")
    arguments = parser.parse_args()

    def report(**facts: object) -> None:
        if arguments.report is not None:
            with arguments.report.open("a") as stream:
                stream.write(json.dumps({"pid": os.getpid(), "port": arguments.mlagents_port, **facts}) + "\n")

    lives = 0
    if arguments.report is not None and arguments.report.exists():
        lives = arguments.report.read_text().count('"event": "began"')
    report(event="began", arguments=sys.argv[1:], proxy=os.environ.get("no_proxy"))
    if arguments.log is not None:
        arguments.log.write_text(f"Mono path\nlife {lives} of a game\nlast words of {os.getpid()}\n")
    if arguments.exit_at_once is not None:
        sys.stderr.write("cannot open display\n")
        return int(arguments.exit_at_once)
    if arguments.never_dial:
        time.sleep(60)  # allow: sleep, because this game hangs until it is killed
    if arguments.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    game = Game(arguments.mlagents_port).begin()
    steps = 0
    for reply in game.play(cameras=arguments.cameras):
        steps += 1
        time.sleep(0.01)  # allow: sleep, because a game draws between its steps
        if reply.header.status != 200:
            break
        if steps == arguments.crash_at or (steps == arguments.crash_once_at and is_first_to_crash(arguments.report)):
            report(event="crashed", steps=steps)
            os._exit(3)
        if steps == arguments.quit_at:
            game.quit()
            break
        if steps == arguments.hang_at:
            time.sleep(60)  # allow: sleep, because this game hangs until it is killed
    report(event="ended", steps=steps, resets=game.resets)
    if arguments.stubborn:
        time.sleep(60)  # allow: sleep, because this game hangs until it is killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
