"""`python -m worker.verification FOLDER CONFIG`: what `ludus run verify-resume` runs. Prints rows as JSON."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ludus.collector.layout import UnsupportedSpec
from ludus.demonstrations import DemonstrationError
from server.config.config import RunConfig
from worker.trainer.checkpoint import CheckpointDamaged, load, save
from worker.trainer.initialization import InitializationError
from worker.verification.verify import CannotVerify, Job, learn, verify


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run. Exit code 0 if all is well, 1 if something differs, 2 if it cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m worker.verification", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the files of a checkpoint")
    parser.add_argument("config", type=Path, help="the run's resolved configuration, as JSON")
    parser.add_argument("--seed", type=int, default=0, help="the run's seed")
    parser.add_argument("--updates", type=int, default=4, help="updates in all; the cut is in the middle")
    parser.add_argument("--demonstration", action="append", default=[], metavar="ID=PATH", help="where one lies")
    parser.add_argument("--go-on", nargs=3, metavar=("BEHAVIOR", "FIRST", "END"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        job = Job(
            config=RunConfig.model_validate_json(options.config.read_bytes()),
            checkpoint=options.folder,
            seed=options.seed,
            demonstrations=dict(item.split("=", 1) for item in options.demonstration),
            updates=max(options.updates, 2),
        )
        if options.go_on is not None:
            behavior, first, end = options.go_on
            saved = load(options.folder)[behavior]
            save(Path(end), {behavior: learn(job, behavior, saved, int(first), job.updates)})
            return 0
        rows = verify(job)
    except (
        CannotVerify,
        CheckpointDamaged,
        DemonstrationError,
        InitializationError,
        UnsupportedSpec,
        OSError,
    ) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps([{**asdict(row), "good": row.is_good} for row in rows]) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
