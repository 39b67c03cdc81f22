"""What the processes of `ludus simulate` print, on the console of the command that watches over them."""

import tracemalloc

import pytest

from ludus.cli.simulate import REMEMBERED, REPORT, MergedOutput


def test_a_report_of_several_processes_is_printed_once_and_lines_of_their_games_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = MergedOutput()
    for process in (0, 1):
        output.line(process, f"{REPORT}the run waits for a worker")
        output.line(process, "level 1 loaded")

    assert capsys.readouterr().err.splitlines() == [
        "process 0: the run waits for a worker",
        "process 0: level 1 loaded",
        "process 1: level 1 loaded",
    ]


@pytest.mark.parametrize("mark", ["", REPORT])
def test_memory_does_not_grow_with_the_number_of_lines(capsys: pytest.CaptureFixture[str], mark: str) -> None:
    output = MergedOutput()

    def print_lines(first: int) -> int:
        for number in range(first, first + 5 * REMEMBERED):
            output.line(0, f"{mark}step {number}")
            if number % REMEMBERED == 0:
                capsys.readouterr()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = print_lines(0)
        after = print_lines(5 * REMEMBERED)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000
