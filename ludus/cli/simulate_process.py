"""One process of `ludus simulate`: plays its environments in the run, tells what happens on standard output.

Ends with the exit code that says how the run ended, with `CRASHED` after an unexpected error, and at once when its
parent is gone (standard input then ends).
"""

import json
import logging
import os
import sys
import threading
import traceback
from pathlib import Path

from ludus.adapters.gymnasium import make_simulation
from ludus.cli.exits import Exit
from ludus.cli.simulate import CRASHED, INTERRUPTED, TOKEN_VARIABLE, Plan
from ludus.demonstrations import RecordedSimulation
from ludus.simulator import CloseCode, Ending, Simulation, SimulatorError, connect

_UNREACHABLE = {"nothing_listens", "unknown_host", "timeout", "unavailable", "not_a_gateway", "tls_mismatch"}
_EXITS = {CloseCode.RUN_FINISHED: Exit.OK, CloseCode.RUN_FAILED: Exit.RUN_FAILED}


def main() -> int:
    """Play, and return the exit code."""
    plan = Plan(**json.loads(sys.argv[1]))
    _say_what_is_logged()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        ending = _play(plan)
    except SimulatorError as error:
        _say(f"{error}")
        return Exit.UNREACHABLE if error.code in _UNREACHABLE else Exit.REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001  the edge of the process: the environment's own error, shown before it is restarted
        traceback.print_exc()
        return CRASHED
    _say(f"{ending.reason} ({ending.decisions} decisions, {ending.episodes} episodes)")
    return _EXITS.get(ending.code, Exit.RUN_CANCELLED)


def _play(plan: Plan) -> Ending:
    simulation: Simulation = make_simulation(plan.env_id, plan.envs, behavior=plan.behavior, seed=plan.seed)
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
