"""Run all benchmarks, print their tables, and write one JSON file with the figures, the machine and the date.

python benchmarks/run.py [--out benchmarks/results/FILE.json] [NAME ...]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("collector", "learner", "sac", "replay", "end_to_end", "solve", "embedded", "vector")


def machine() -> dict[str, object]:
    """Describe this machine."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="which; all by default")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    today = datetime.now(UTC).date().isoformat()
    results: dict[str, object] = {"date": today, "machine": machine()}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or BENCHMARKS:
            print(f"== {name}", flush=True)
            figures = Path(folder) / f"{name}.json"
            command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(figures)]
            failed += subprocess.run(command, check=False).returncode != 0
            results[name] = json.loads(figures.read_text()) if figures.exists() else None
    out = options.out or HERE / "results" / f"{today}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"figures in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
