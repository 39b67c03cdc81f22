"""One process of `ludus simulate`: plays its games in the run, and reports on standard output.

Ends with `OUTCOME` plus the exit code that says how the run ended, with `CRASHED` after an unexpected error, and at
once when its parent ends.
"""

import logging
import os
import sys
import traceback
from pathlib import Path

from ludus.child_process import end_with_parent
from ludus.cli.exits import INTERRUPTED, Exit, exit_of_end, exit_of_error, sigterm_interrupts
from ludus.cli.simulate import CRASHED, OUTCOME, REPORT, Plan
from ludus.cli.sources import with_scripted
from ludus.console import tolerate
from ludus.demonstrations.recorded import RecordedSimulation
from ludus.play.checks.first_steps import FirstSteps
from ludus.protocol.codes import CloseCode
from ludus.protocol.credentials import SIMULATOR_TOKEN
from ludus.sdk import ConnectionSummary, Simulation, SimulatorError
from ludus.sdk.connection import connect_to
from ludus.sdk.crashes import GameNotMade, line_of, own_traceback
from ludus.sdk.errors import GameLost


def main() -> int:
    """Play, and return the exit code."""
    plan = Plan.from_json(sys.argv[1])
    end_with_parent()
    tolerate()
    logger = logging.getLogger("ludus.sdk")
    reports = logging.StreamHandler(sys.stdout)
    reports.setFormatter(logging.Formatter(f"{REPORT}%(message)s"))
    logger.addHandler(reports)
    logger.setLevel(logging.INFO)
    try:
        ending = _play(plan)
    except SimulatorError as error:
        advice = line_of(error)
        if error.code == CloseCode.BEHAVIOR_NOT_CONFIGURED:
            unless = " (a Simulation names its behaviors itself)" if plan.source.library == "python" else ""
            renames = f"; --behavior NAME gives the game's behavior another name{unless}"
            advice = "" if plan.source.separate else renames
        logger.info("%s%s", error, advice)
        return OUTCOME + exit_of_error(error.code)
    except GameLost as error:
        logger.info("%s", error)
        return CRASHED
    except GameNotMade as error:
        if error.trace is None:  # the options do not fit: another attempt would not help
            logger.info("%s", error)
            return OUTCOME + Exit.USAGE
        sys.stderr.write(error.trace)
        return CRASHED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of the process: the game's own error, shown before a restart
        sys.stderr.write(own_traceback(error) or traceback.format_exc())
        return CRASHED
    logger.info("%s (%d decisions, %d episodes)", ending.reason, ending.decisions, ending.episodes)
    return OUTCOME + exit_of_end(ending.code)


def _play(plan: Plan) -> ConnectionSummary:
    simulation: Simulation = with_scripted(plan.source.make(plan.envs, plan.seed), plan.scripted)
    if plan.record is not None:
        simulation = RecordedSimulation(simulation, Path(plan.record))
    target = plan.target(os.environ[SIMULATOR_TOKEN] if plan.token_given else None)
    with sigterm_interrupts():  # the game is closed
        return connect_to(target, simulation, FirstSteps(logging.getLogger("ludus.sdk").log))


if __name__ == "__main__":
    sys.exit(main())
