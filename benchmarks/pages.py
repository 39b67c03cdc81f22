"""The cost of open pages: fifty of them beside a training run.

    python benchmarks/pages.py [--pages 50] [--seconds 10] [--pairs 6]      # needs Chromium

`ludus up` trains CartPole with one simulator. A real page of that run is watched in Chromium for a while, and what it
asked for, and when, is then asked by a process of its own for as many readers as wanted: browsers run on other machines
in practice, and fifty of them on these cores would measure Chromium. Like a browser, a reader sends the `ETag` of its
last answer and keeps one event stream. Windows without and with readers alternate (A B A B); beside both somebody
lists the runs. The bars: agent steps/s with readers at least 0.97 of those without; the 99th percentile of the run list
at most twice as long.
"""

import argparse
import asyncio
import multiprocessing
import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil
from playwright.sync_api import sync_playwright

from ludus.client import Client
from tests.e2e.stack import LudusUp, Player, cartpole
from tests.waiting import eventually

OLD_SECONDS = 125.0
"""A page asks less often of a run that is older than two minutes, as most are."""
WATCHED_SECONDS = 24.0
"""How long the real page is watched after it is there: several of its rounds."""
LISTS_PER_SECOND = 10.0
STREAM = "events:stream"


@dataclass(frozen=True)
class Request:
    """What a page asked for, at a time since it was opened."""

    at: float
    path: str


def watch(server: str, run: str) -> list[Request]:
    """Open the page of a run in a browser; return what it asks for once it is there."""
    found: list[Request] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{server}/ui/runs/{run}")
        page.locator(".chart canvas").first.wait_for()
        began = time.monotonic()
        page.on(
            "request",
            lambda request: found.append(Request(time.monotonic() - began, request.url.removeprefix(server))),
        )
        page.wait_for_timeout(1000 * WATCHED_SECONDS)
        browser.close()
    return found


class Reader:
    """A page that is open: it asks as the watched one did, round after round.

    Written by hand on bare connections, to cost these cores as little as possible. Each request has one of its own: the
    server closes those that are idle for as long as a page waits.
    """

    def __init__(self, server: str, requests: list[Request]) -> None:
        self._address = urlsplit(server)
        self._requests = requests
        self._tags: dict[str, bytes] = {}

    async def run(self, delay: float) -> None:
        """Ask; the first round begins `delay` seconds after its beginning."""
        clock = asyncio.get_running_loop().time
        begin = clock() - delay
        while True:
            for request in self._requests:
                await asyncio.sleep(begin + request.at - clock())
                tag = b"If-None-Match: %s\r\n" % self._tags[request.path] if request.path in self._tags else b""
                reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
                writer.write(self._get(request.path) + tag + b"Connection: close\r\n\r\n")
                answer = await reader.read(-1)
                writer.close()
                assert answer.split(maxsplit=2)[1] in {b"200", b"304"}, answer[:200]
                if (found := re.search(rb"etag: (\S+)", answer)) is not None:
                    self._tags[request.path] = found[1]
            begin += WATCHED_SECONDS

    async def follow(self, run: str) -> None:
        """Hold an event stream."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            writer.write(self._get(f"/v1/runs/{run}/{STREAM}") + b"\r\n")
            assert (await reader.readline()).split()[1] == b"200"
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()

    def _get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self._address.netloc}\r\n".encode()


def readers(server: str, run: str, count: int, requests: list[Request], pipe: Connection) -> None:
    """Read while the pipe says so, by True and False, until None comes; the body of a process."""

    async def all_of_them() -> None:
        while (wanted := await asyncio.to_thread(pipe.recv)) is not None:
            if not wanted:
                continue
            used = time.process_time()
            pages = [Reader(server, requests) for _ in range(count)]
            tasks = [asyncio.create_task(page.follow(run)) for page in pages]
            tasks += [asyncio.create_task(page.run(WATCHED_SECONDS * i / count)) for i, page in enumerate(pages)]
            await asyncio.to_thread(pipe.recv)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
            pipe.send(time.process_time() - used)

    asyncio.run(all_of_them())


@dataclass(frozen=True)
class Window:
    """What was measured in one window."""

    steps_per_second: float
    list_seconds: list[float]
    api_share: float
    """Processor time of the api's process per second."""


def measure(client: Client, run: str, api: psutil.Process, seconds: float) -> Window:
    """Let the run train for a while, and list the runs meanwhile."""
    times: list[float] = []
    first, began, used = client.runs.get(run).step, time.monotonic(), sum(api.cpu_times()[:2])
    while time.monotonic() - began < seconds:
        asked = time.monotonic()
        list(client.runs.list(limit=100))
        times.append(time.monotonic() - asked)
        time.sleep(max(0.0, 1 / LISTS_PER_SECOND - times[-1]))
    last, elapsed = client.runs.get(run).step, time.monotonic() - began
    return Window((last - first) / elapsed, times, (sum(api.cpu_times()[:2]) - used) / elapsed)


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=50, help="pages that are open")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--pairs", type=int, default=6, help="windows of either kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        stack = LudusUp(Path(home))
        try:
            with stack.client() as client:
                config = cartpole(10**9, summary_freq=2000, checkpoint_interval=500_000)  # as the preset has them
                run = client.runs.create(config, name="watched").id
                player = Player(stack, run)
                eventually(lambda: client.runs.get(run).step > 0, "the run learns", 120)
                time.sleep(OLD_SECONDS)
                requests = [each for each in watch(stack.api, run) if STREAM not in each.path]
                rate = options.pages * len(requests) / WATCHED_SECONDS
                print(f"{options.pages} pages ask {rate:.0f} times a second, one {rate / options.pages:.2f} times")
                ours, theirs = multiprocessing.get_context("spawn").Pipe()
                process = multiprocessing.get_context("spawn").Process(
                    target=readers, args=(stack.api, run, options.pages, requests, theirs), daemon=True
                )
                process.start()
                api = stack.children()["api"]
                readers_used = 0.0
                windows: dict[bool, list[Window]] = {False: [], True: []}
                for _ in range(options.pairs):
                    for wanted, measured in windows.items():
                        if wanted:
                            ours.send(True)
                            time.sleep(2.0)  # their streams and first answers
                        measured.append(measure(client, run, api, options.seconds))
                        if wanted:
                            ours.send(False)
                            readers_used += ours.recv()
                ours.send(None)
                player.kill()
                print(f"the readers themselves used {readers_used / options.pairs / options.seconds:.3f} s per second")
        finally:
            stack.stop()
    report(windows)


def report(windows: dict[bool, list[Window]]) -> None:
    """Print what the windows say."""
    steps, share = (
        {wanted: statistics.median(getattr(each, name) for each in found) for wanted, found in windows.items()}
        for name in ("steps_per_second", "api_share")
    )
    p99 = {
        wanted: 1000 * float(np.quantile([each for window in found for each in window.list_seconds], 0.99))
        for wanted, found in windows.items()
    }
    for what, found, bar in (
        ("agent steps/s", steps, "at least 0.97"),
        ("run list, 99th percentile, ms", p99, "at most 2"),
        ("processor time of the api, s per second", share, "none"),
    ):
        without, beside = found[False], found[True]
        print(f"{what}: {without:,.3f} without, {beside:,.3f} with: {beside / without:.3f} (bar: {bar})")


if __name__ == "__main__":
    main()
