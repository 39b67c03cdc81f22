"""`ludus compare`: whether one group of runs is better than another, by how much, and how sure that is."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import click
import numpy as np

from ludus.cli import exits
from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.groups import Group, Score, counted, find_group, scores_of
from ludus.cli.options import Parsed, finite, json_option, option
from ludus.cli.render import echo, number, print_json
from ludus.cli.reports import Report, ReportedCommand, report_options
from ludus.client import Client
from ludus.json_values import JsonObject
from ludus.metric_keys import full_key
from ludus.statistics import MOST_SEEDS, Comparison, Estimate, as_scores, compare_groups, interval, performance_profile

THRESHOLDS = 11
"""Scores at which the performance profiles in the JSON are told."""
MOST_RUNS, SHOWN_KEYS = 200, 3
"""Runs whose configurations the server compares at once, and keys in which they differ that the command shows."""
UNEQUAL_STEPS = 1.1
"""Steps of the longest run in those of the shortest one from which on the command says that they differ."""


def _from(low: float, end: float = math.inf) -> Parsed:
    """Return the type of a number from `low` on and below `end`."""

    def read(text: str) -> float:
        value = finite.read(text)
        assert isinstance(value, float)
        if not low <= value < end:
            raise ValueError(f"{text} is not from {low:g} on{'' if end == math.inf else f' and below {end:g}'}")
        return value

    return Parsed("number", read)


@click.command(cls=ReportedCommand, epilog=exits.COMPARISON_HELP)
@click.argument("a")
@click.argument("b")
@option("--metric", default="reward", metavar="[BEHAVIOR:]KEY", help="The metric that is the score of a run.")
@option("--last", type=click.IntRange(1, 250), default=5, help="A run's score is the mean of its last LAST summaries.")
@option("--higher/--lower", "higher", default=True, help="Whether a higher or a lower score is better.")
@option("--margin", type=_from(0.0), default=0.0, help="Largest difference that does not matter.")
@option("--confidence", type=_from(0.5, 1.0), default=0.95, help="Confidence of intervals and verdict.")
@click.option("--require", type=click.Choice(["better", "not-worse"]), help="Fail unless B is shown to be so.")
@json_option
@report_options
@connected
def compare(
    client: Client,
    *,
    a: str,
    b: str,
    metric: str,
    last: int,
    higher: bool,
    margin: float,
    confidence: float,
    require: str | None,
    as_json: bool,
    report: Report,
) -> None:
    """Say whether the runs of B are better than those of A, by how much, how sure that is, or how many more seeds
    it takes to tell.

    A and B are groups of runs that differ by their seeds: RUN,RUN,... (ids or names); tag:TAG, the runs with a tag that
    succeeded; or experiment:NAME, the best trial of an experiment, and experiment:NAME/TRIAL.

    \b
    ludus compare tag:ppo-before tag:ppo-after
    ludus compare walker-1,walker-2,walker-3,walker-4 tag:wider --margin 5 --require not-worse --junit compare.xml
    """
    if require == "not-worse" and not margin:
        raise click.UsageError("--require not-worse needs a --margin: no number of seeds shows that nothing is lost")
    behavior, colon, key = metric.partition(":")
    key = full_key(key if colon else metric)
    groups = [find_group(client, text) for text in (a, b)]
    if both := {run.id for run in groups[0].runs} & {run.id for run in groups[1].runs}:
        raise Failure(f"{', '.join(sorted(both))} is in A and in B: a run is not better than itself", Exit.USAGE)
    runs = [scores_of(client, group.runs, behavior if colon else None, key, last) for group in groups]
    scores = [[run.score for run in of_group] for of_group in runs]
    found = compare_groups(*scores, margin=margin, confidence=confidence, higher_is_better=higher)
    sizes = len(scores[0]), len(scores[1])
    line = f"{verdict_line(found, sizes, margin)} ({key}{'' if higher else ', lower is better'}; "
    line += f"{100 * confidence:g} % intervals)"
    report.server = client.server
    report.lines.append(line)
    if not as_json:
        echo(line)
    for note in _notes(client, groups, runs):
        report.add(note)
    if as_json:
        sides = {
            name: {
                "group": group.text,
                "runs": of_group,
                "left_out": group.left_out,
                "interquartile_mean": mean,
            }
            for name, group, of_group, mean in zip("ab", groups, runs, (found.a, found.b), strict=True)
        }
        print_json(
            {
                "sentence": line,
                "notes": report.details,
                "verdict": found.verdict,
                "not_worse": found.not_worse,
                **sides,
                "gain": found.gain,
                "probability_of_improvement": found.probability,
                "p_value": found.p_value,
                "more_seeds": found.more_seeds and dict(zip("ab", found.more_seeds, strict=True)),
                "profile": _profile(scores, confidence),
                "metric": key,
                "behavior": behavior if colon else None,
                "last": last,
                "higher_is_better": higher,
                "margin": margin,
                "confidence": confidence,
            }
        )
    met = {None: True, "better": found.verdict == "better", "not-worse": found.not_worse}[require]
    if not met:
        report.reason = line
        sys.exit(Exit.UNDECIDED if found.verdict == "undecided" else Exit.FAILED_GATE)


def verdict_line(found: Comparison, sizes: tuple[int, int], margin: float) -> str:
    """Return a comparison of groups of so many runs as a sentence."""
    means = f"{number(found.b.value)} against {number(found.a.value)} (interquartile mean)"
    if found.gain.low is None:
        subject = "One seed each says" if sizes == (1, 1) else f"One seed of {'A' if sizes[0] == 1 else 'B'} says"
        fewest = max(size + more for size, more in zip(sizes, found.more_seeds or (), strict=True) if more)
        return f"{subject} nothing about other seeds: {means}; with fewer than {fewest} of each nothing can be told"
    seeds = f"{sizes[0]} seeds each" if sizes[0] == sizes[1] else f"{sizes[0]} seeds of A, {sizes[1]} of B"
    rest = f"probability of improvement {_estimate(found.probability)}; {seeds}"
    gain = f"a gain of {_estimate(found.gain)}"
    match found.verdict:
        case "better":
            return f"B is better: {means}, by {_estimate(found.gain)}, {rest}"
        case "worse":
            gain_of_a = Estimate(-found.gain.value, *(end and -end for end in (found.gain.high, found.gain.low)))
            return f"B is worse: {means}, by {_estimate(gain_of_a)}, {rest}"
        case "same":
            return f"A and B are the same within {number(margin)}: {means}, {gain}, {rest}"
        case "undecided":
            begin = "Not enough seeds to tell"
            if found.not_worse:
                begin = f"B is not worse by more than {number(margin)}; not enough seeds to tell more"
            return f"{begin}: {means}, {gain}, {rest}; {_advice(found.more_seeds, margin)}"


def _estimate(estimate: Estimate) -> str:
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _advice(more_seeds: tuple[int, int] | None, margin: float) -> str:
    if more_seeds is None:
        unless = "" if margin else ", unless a difference that does not matter is given as --margin"
        return f"more than {MOST_SEEDS} more seeds would be needed{unless}"
    of_a, of_b = more_seeds
    each = f"{of_a} more seed{'s' if of_a > 1 else ''} of each"
    apart = " and ".join(f"{count} more of {name}" for count, name in ((of_a, "A"), (of_b, "B")) if count)
    return f"about {each if of_a == of_b else apart} would settle it if the difference stays"


def _notes(client: Client, groups: Sequence[Group], runs: Sequence[Sequence[Score]]) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the comparison."""
    for name, group, of_group in zip("AB", groups, runs, strict=True):
        if group.left_out:
            yield f"{name} leaves out {counted(group.left_out)}: of the runs with a tag only those count that succeeded"
        for run in group.runs:
            if run.state != "SUCCEEDED":
                yield f"{run.name} of {name} is {run.state}, and counts with what it has"
        if repeated := [seed for seed, count in Counter(run.seed for run in of_group).items() if count > 1]:
            seeds = ", ".join(map(str, repeated))
            yield f"runs of {name} have one seed ({seeds}): they may be alike, and the intervals too narrow"
        if 1 < len(of_group) <= MOST_RUNS:
            differing = client.runs.compare([run.id for run in of_group]).differing
            if keys := [key.path for key in differing if key.path.rpartition(".")[2] != "seed"]:
                others = f" and {len(keys) - SHOWN_KEYS} more keys" if len(keys) > SHOWN_KEYS else ""
                yield f"runs of {name} differ in more than their seeds: {', '.join(keys[:SHOWN_KEYS])}{others}"
    steps = [run.step for of_group in runs for run in of_group]
    if max(steps) > UNEQUAL_STEPS * min(steps):
        yield f"the runs have trained {number(min(steps))} to {number(max(steps))} steps"


def _profile(scores: Sequence[Sequence[float]], confidence: float) -> list[JsonObject]:
    """Return the share of the runs above each of some scores, from the lowest one to the highest, for both groups."""
    pooled = [score for of_group in scores for score in of_group]
    thresholds = np.linspace(min(pooled), max(pooled), THRESHOLDS)
    shares = [performance_profile(as_scores(of_group), thresholds) for of_group in scores]
    ends = [
        interval(of_group, partial(performance_profile, thresholds=thresholds), confidence=confidence)
        for of_group in scores
    ]
    return [
        {"above": float(threshold)}
        | {
            name: Estimate(float(share[at]), *((None, None) if end is None else map(float, end[:, at])))
            for name, share, end in zip("ab", shares, ends, strict=True)
        }
        for at, threshold in enumerate(thresholds)
    ]
