"""One process of `ludus simulate`: plays its games in the run, tells what happens on standard output.

Ends with the exit code that says how the run ended, with `CRASHED` after an unexpected error, and at once when its
parent is gone (standard input then ends).
"""

import logging
import os
import sys
import threading
import traceback
from pathlib import Path

from ludus.cli.exits import INTERRUPTED, exit_of_end, exit_of_error
from ludus.cli.options import TOKEN_VARIABLE
from ludus.cli.simulate import CRASHED, Plan
from ludus.cli.sources import with_scripted
from ludus.demonstrations import RecordedSimulation
from ludus.simulator import Ending, Simulation, SimulatorError, connect


def main() -> int:
    """Play, and return the exit code."""
    plan = Plan.from_json(sys.argv[1])
    _say_what_is_logged()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        ending = _play(plan)
    except SimulatorError as error:
        _say(f"{error}")
        return exit_of_error(error.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001  the edge of the process: the environment's own error, shown before it is restarted
        traceback.print_exc()
        return CRASHED
    _say(f"{ending.reason} ({ending.decisions} decisions, {ending.episodes} episodes)")
    return exit_of_end(ending.code)


def _play(plan: Plan) -> Ending:
    simulation: Simulation = with_scripted(plan.source.make(plan.envs, plan.seed), plan.scripted)
    if plan.record is not None:
        simulation = RecordedSimulation(simulation, Path(plan.record))
    return connect(
        simulation,
        run=plan.run,
        server=plan.server,
        token=os.environ.get(TOKEN_VARIABLE),
        label=plan.label,
        ca_file=None if plan.ca_file is None else Path(plan.ca_file),
        patience_seconds=plan.patience_seconds,
    )


def _say_what_is_logged() -> None:
    handler = logging.StreamHandler(sys.stdout)
    logger = logging.getLogger("ludus.simulator")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _say(sentence: str) -> None:
    logging.getLogger("ludus.simulator").info(sentence)


def _end_with_parent() -> None:
    # Not sys.stdin.read(): its lock, held by this thread, would abort the interpreter at its end.
    while os.read(0, 1024):
        pass
    os._exit(CRASHED)


if __name__ == "__main__":
    sys.exit(main())
