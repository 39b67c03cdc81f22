"""The flight recorder of a collector: what it costs in agent steps a second.

    python -m benchmarks.recorder [--seconds 2] [--rounds 7] [--json FILE] [--only NAME]

Three collectors do the work of `benchmarks.collector` in turn (A B C A B C ...): one without a recorder, one that keeps
the last 30 s of each session for errors (the default), and one that records every session whole. The figures are
medians of the messages a second, and of the ratios to the first one in the same round.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.collector import SCENARIOS, Bench, Scenario
from ludus.collector.settings import CollectorSettings
from ludus.config.recording import RecordConfig

EVERYTHING = RecordConfig(share=1, sessions=1000, max_seconds=1e6, max_bytes=1 << 40)
WAYS = {"without": RecordConfig(errors=False), "errors (default)": RecordConfig(), "everything": EVERYTHING}


@dataclass(frozen=True)
class Result:
    """Medians over the rounds."""

    scenario: str
    rates: dict[str, float]
    """Messages a second, by way."""
    ratios: dict[str, float]
    """To the rate without a recorder, of the same round."""
    bytes_a_message: float
    """Of recordings, after compression."""


def measure(scenario: Scenario, seconds: float, rounds: int) -> Result:
    """Take turns."""
    with tempfile.TemporaryDirectory() as home:
        folders = {way: Path(home) / way.partition(" ")[0] for way in WAYS}
        benches = {}
        for way, record in WAYS.items():
            folder = None if way == "without" else str(folders[way])
            benches[way] = Bench(scenario, seconds, CollectorSettings("bench", 1, 7, record=record, recordings=folder))
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        try:
            for bench in benches.values():
                bench.turn(collector=True)  # admission and warm-up
            for _ in range(rounds):
                for way, bench in benches.items():
                    rates[way].append(sum(bench.turn(collector=True)) / seconds)
        finally:
            for bench in benches.values():
                bench.close()
        written = sum(file.stat().st_size for file in folders["everything"].iterdir())
    plain = rates["without"]
    ratios = {way: statistics.median(b / a for a, b in zip(plain, rates[way], strict=True)) for way in WAYS}
    medians = {way: statistics.median(values) for way, values in rates.items()}
    return Result(scenario.name, medians, ratios, written / max(seconds * sum(rates["everything"]), 1))


def main() -> None:
    """Measure every scenario and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    results = []
    print(f"{'simulators x agents':<22}{'msg/s':>10}{'errors':>9}{'everything':>12}{'bytes/msg':>11}")
    for scenario in SCENARIOS:
        if arguments.only in scenario.name:
            result = measure(scenario, arguments.seconds, arguments.rounds)
            results.append(asdict(result))
            errors, everything = result.ratios["errors (default)"], result.ratios["everything"]
            rate = result.rates["without"]
            print(f"{result.scenario:<22}{rate:>10.0f}{errors:>9.3f}{everything:>12.3f}{result.bytes_a_message:>11.0f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
