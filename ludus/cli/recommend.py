"""`ludus recommend`: the keys that measured better for the kind of task that a configuration is for."""

import json
from statistics import fmean

import click

from ludus.cli.client import connected, sending
from ludus.cli.files import Text, TextFile
from ludus.cli.options import json_option
from ludus.cli.render import echo, number, print_json, print_table
from ludus.client import Client
from ludus.config.recommendations import figures, harmed, is_better, measured, measurements, summary, unmet
from ludus.json_values import JsonObject


@click.command()
@click.argument("file", type=TextFile())
@json_option
@connected
def recommend(client: Client, *, file: Text, as_json: bool) -> None:
    """Name the keys that measured better than what FILE has (`-` is standard input), with the figures.

    FILE is checked as by `ludus run create --validate-only`. Measurements are of the same kind of task as far as a
    configuration shows: trainer, reward signals, memory, number of steps. Where there is none, it says so.

    \b
    ludus config preset cartpole | ludus recommend -
    """
    with sending(file.name):
        config = client.runs.plan(file.content).config
    sections = config.get("behaviors") or {"default_settings": config.get("default_settings") or {}}
    answers = {name: _answer(section) for name, section in sections.items()}
    if as_json:
        print_json({"behaviors": answers})
        return
    for name, answer in answers.items():
        echo(f"{name} ({answer['trainer_type']}): {answer['sentence']}")
        for row in answer["measured"]:
            verdict = "better" if row["better"] else "not shown to be better"
            verdict += f", worse on {', '.join(row['harmed'])}" if row["harmed"] else ""
            echo()
            echo(f"{row['key']}: {json.dumps(row['value'])} instead of {json.dumps(row['default'])}: {verdict}")
            echo(f"{row['summary']}; {row['source']}, {row['date']}")
            table = [
                [
                    *(task["task"], task["actions"], number(task["steps"])),
                    *(number(fmean(task[side])) for side in ("without", "with")),
                    figures(task),
                ]
                for task in row["tasks"]
            ]
            print_table(["task", "actions", "steps", "without", "with", "probability"], table)


def _answer(section: JsonObject) -> JsonObject:
    """Return what was measured for a resolved section, the most probable improvement first, and a sentence."""
    rows = [
        {**row, "better": is_better(row), "harmed": harmed(row), "summary": summary(row)} for row in measured(section)
    ]
    rows.sort(key=lambda row: -row["probability"]["value"])
    trainer = section.get("trainer_type")
    sentence = f"{sum(row['better'] for row in rows)} of {len(rows)} measured keys are better than what it has"
    if not rows:
        missing = [unmet(row, section) for row in measurements() if row["when"]["trainer_type"] == trainer]
        reason = f"there are no figures of {trainer}"
        if missing:
            nearest = min(missing, key=len)
            reason = (
                f"figures are for {', '.join(nearest)}"
                if nearest
                else "each measured key has another value than its default"
            )
        sentence = f"nothing measured for this; {reason}"
    return {"trainer_type": trainer, "sentence": sentence, "measured": rows}
