"""Run the whole suite in many random orders, one after another, and print a table: `make test-orders`.

    python -m tests.orders [--orders 20] [--seed 4711] -- PYTEST_ARGUMENTS

An order is the number that pytest-randomly draws it from: `--randomly-seed=4711` draws order 4711 again.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Return 0 if the suite passed in every order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20, help="how many orders")
    parser.add_argument("--seed", type=int, help="the first one; the others follow it (by default drawn at random)")
    parser.add_argument("arguments", nargs="*", metavar="PYTEST_ARGUMENTS")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    logs = Path(tempfile.mkdtemp(prefix="ludus-orders-"))
    print(f"outputs: {logs}\n\n{'seed':>10}  {'result':<6}  {'seconds':>7}  pytest's last line", flush=True)
    failures: dict[int, list[str]] = {}
    for seed in range(first, first + options.orders):
        began = time.monotonic()
        log = logs / f"{seed}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "pytest", "-q", f"--randomly-seed={seed}", *options.arguments]
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        lines = log.read_text(errors="replace").splitlines()
        if code:
            failures[seed] = [line for line in lines if re.match("(FAILED|ERROR) ", line)]
        last = lines[-1].strip("= ") if lines else ""
        print(f"{seed:>10}  {'failed' if code else 'passed'}  {time.monotonic() - began:7.0f}  {last}", flush=True)
    for seed, tests in failures.items():
        print(f"\nfailed with --randomly-seed={seed}:", *(tests or ["see its output"]), sep="\n  ")
    print(f"\n{options.orders - len(failures)} of {options.orders} orders passed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
