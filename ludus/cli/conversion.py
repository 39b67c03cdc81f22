"""`ludus demonstration convert`: demonstrations of recordings, Parquet files and Minari's datasets."""

from pathlib import Path

from ludus.cli.client import Failure, writing
from ludus.cli.exits import Exit
from ludus.cli.render import echo
from ludus.demonstrations import DemonstrationError, read, write
from ludus.demonstrations.parquet import read_parquet
from ludus.names import to_name
from ludus.play.recordings.file import SUFFIX, BadRecording


def convert_source(source: Path, output: Path, behavior: str | None) -> None:
    """Write the demonstrations of `source` and say what they hold. Raises Failure."""
    if output.exists():
        raise Failure(f"{output} exists; name another file", Exit.REFUSED)
    try:
        with writing(output):
            files = _converted(source, output, behavior or to_name(source.stem) or source.stem)
        shown = {file: read(file) for file in files}
    except DemonstrationError as error:
        raise Failure(str(error), Exit.REFUSED) from None
    except BadRecording as error:
        raise Failure(f"{source}: {error}", Exit.REFUSED) from None
    if not shown:
        raise Failure(f"{source} has no step with an answer and an outcome", Exit.REFUSED)
    for file, demonstration in shown.items():
        rewards = "" if demonstration.rewards.any() else "; ALL REWARDS ARE 0, so that only cloning can learn from it"
        echo(f"{file}: {demonstration.steps} steps in {demonstration.pieces} pieces{rewards}")


def _converted(source: Path, output: Path, behavior: str) -> list[Path]:
    if source.suffix == SUFFIX:
        from ludus.play.recordings.episodes import write_episodes  # noqa: PLC0415  a light installation has no collector

        return write_episodes(source, output)
    if source.is_dir() and not any(source.glob("*.parquet")):
        try:
            from ludus.adapters.minari import read_minari  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise DemonstrationError(f"Minari's datasets need {error.name}: pip install 'ludus[datasets]'") from None
        write(read_minari(source, behavior), output)
    else:
        write(read_parquet(source, behavior), output)
    return [output]
