"""How exactly load clients see the gaps of streams, against a server that notes when it wrote what.

    python -m tests.benchmarks.client_accuracy --streams 1 8 32 128 --repeat 3

The server is a process of its own and sends 50 events a second on every stream, all streams at the same
moments, as an engine that decodes a batch does; in the middle all of them stall for half a second. Client and
server share one monotonic clock, and an error is the difference between a gap as written and the same gap as
read, so what the server does too late is nobody's fault. Prints medians over the repeats, and the load of the
machine, which is in every figure.

Our client runs as it does in a study: Locust in a process of its own. The others are what people write by
hand: httpx on threads and on asyncio, stamping every line that carries text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httpx

from engine.core.quantiles import nearest_rank
from loadtests.run import run_load
from loadtests.schedule import Schedule, ScheduledRequest
from loadtests.scripted import DONE, ROLE_ONLY, Script, ScriptedServer, Write, event, text

EVENT_EVERY_S = 0.02
STALL_S = 0.5
_START_S = 0.4  # the first event comes when everybody has connected
_CONTEXT = multiprocessing.get_context("spawn")

Stamps = Mapping[int, Sequence[float]]  # by max_tokens: seconds of every content event


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client made of one scene."""

    stamps: Stamps
    cpu_share: float
    dispatch_lags_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Errors:
    """Seconds, but for the share of a core."""

    gap_p50: float
    gap_p99: float
    worst: float
    stall: float
    cpu_share: float


Client = Callable[[str, Sequence[int]], Seen]


def script(num_events: int) -> Script:
    """Events at a steady pace with one stall in the middle."""
    before = [Write(EVENT_EVERY_S, text(emit_ns=1), 1)] * (num_events // 2)
    after = [Write(EVENT_EVERY_S, text(emit_ns=1), 1)] * (num_events - num_events // 2 - 1)
    stall = Write(STALL_S, text(emit_ns=1), 1)
    end = Write(0.0, event({}, finish="length") + DONE)
    return Script((Write(_START_S, ROLE_ONLY), *before, stall, *after, end))


def _serve(scripts: Mapping[int, Script], pipe: Connection) -> None:
    with ScriptedServer(scripts) as server:
        pipe.send(server.url)
        while pipe.recv():
            pipe.send(server.sent)


@contextlib.contextmanager
def serving(scripts: Mapping[int, Script]) -> Iterator[tuple[str, Callable[[], Stamps]]]:
    """A scripted server in a process of its own: its address, and what it has written."""
    ours, its = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(scripts, its), daemon=True)
    process.start()

    def sent() -> Stamps:
        ours.send(True)
        return {key: [at / 1e9 for at, n in writes for _ in range(n)] for key, writes in ours.recv().items()}

    try:
        yield ours.recv(), sent
    finally:
        ours.send(False)
        process.join()


def ours(url: str, keys: Sequence[int]) -> Seen:
    """The load client of a study, Locust and its process included."""
    requests = tuple(
        ScheduledRequest(id=str(key), at_s=0.0, prompt_tokens=16, max_tokens=key, prompt_seed=key)
        for key in keys
    )
    return play_schedule(url, requests, 0.1)


def play_schedule(url: str, requests: tuple[ScheduledRequest, ...], duration_s: float) -> Seen:
    plan = Schedule(
        name="accuracy",
        seed=0,
        requests=requests,
        duration_s=duration_s,
        grace_s=60.0,
        long_prompt_tokens=1 << 20,
    )
    result = run_load(plan, url, abort_pause_s=60.0)
    lags = [r.sent_at_s - r.scheduled_at_s for r in result.records if r.sent_at_s is not None]
    stamps = {r.max_tokens: [event.at_s for event in r.events] for r in result.records}
    return Seen(stamps, result.validity.cpu_share, lags)


def httpx_threads(url: str, keys: Sequence[int]) -> Seen:
    """One thread and one client for each stream."""
    return _in_a_process(_play_threads, url, keys)


def httpx_asyncio(url: str, keys: Sequence[int]) -> Seen:
    """One event loop, one client, a task for each stream."""
    return _in_a_process(_play_asyncio, url, keys)


def _in_a_process(
    play: Callable[[str, Sequence[int]], dict[int, list[float]]], url: str, keys: Sequence[int]
) -> Seen:
    ours, its = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_measure, args=(play, url, keys, its), daemon=True)
    process.start()
    seen: Seen = ours.recv()
    process.join()
    return seen


def _measure(
    play: Callable[[str, Sequence[int]], dict[int, list[float]]],
    url: str,
    keys: Sequence[int],
    pipe: Connection,
) -> None:
    started_s, cpu_s = time.perf_counter(), time.process_time()
    stamps = play(url, keys)
    share = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
    pipe.send(Seen(stamps, share))


def _body(key: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": key, "stream": True}


def _take(line: str, stamps: list[float]) -> None:
    at_s = time.perf_counter()
    if line.startswith("data: {"):
        choices = json.loads(line[6:])["choices"]
        if choices and choices[0]["delta"].get("content"):
            stamps.append(at_s)


def _play_threads(url: str, keys: Sequence[int]) -> dict[int, list[float]]:
    stamps: dict[int, list[float]] = {key: [] for key in keys}

    def read(key: int) -> None:
        path = f"{url}/v1/chat/completions"
        with httpx.Client(timeout=60) as client, client.stream("POST", path, json=_body(key)) as response:
            for line in response.iter_lines():
                _take(line, stamps[key])

    threads = [threading.Thread(target=read, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return stamps


def _play_asyncio(url: str, keys: Sequence[int]) -> dict[int, list[float]]:
    stamps: dict[int, list[float]] = {key: [] for key in keys}

    async def read(client: httpx.AsyncClient, key: int) -> None:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=_body(key)) as response:
            async for line in response.aiter_lines():
                _take(line, stamps[key])

    async def read_all() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            await asyncio.gather(*(read(client, key) for key in keys))

    asyncio.run(read_all())
    return stamps


CLIENTS: Mapping[str, Client] = {"ours": ours, "httpx threads": httpx_threads, "httpx asyncio": httpx_asyncio}


def gaps(stamps: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(stamps)]


def compare(written: Stamps, seen: Seen) -> Errors:
    """Gap by gap; events that never arrived are an error of the whole benchmark."""
    for key, stamps in written.items():
        assert len(stamps) == len(seen.stamps[key]), (
            f"stream {key}: {len(seen.stamps[key])} of {len(stamps)} events"
        )
    pairs = [pair for key in written for pair in zip(gaps(written[key]), gaps(seen.stamps[key]), strict=True)]
    errors = sorted(abs(a - b) for a, b in pairs)
    stalls = [abs(max(gaps(written[key])) - max(gaps(seen.stamps[key]))) for key in written]
    p50, p99 = nearest_rank(errors, 0.50), nearest_rank(errors, 0.99)
    assert p50 is not None
    assert p99 is not None
    return Errors(p50, p99, errors[-1], max(stalls), seen.cpu_share)


def measure(client: Client, num_streams: int, num_events: int) -> Errors:
    keys = range(num_events, num_events + num_streams)
    with serving({key: script(num_events) for key in keys}) as (url, sent):
        seen = client(url, keys)
        return compare(sent(), seen)


def show(name: str, num_streams: int, runs: Sequence[Errors]) -> None:
    def ms(field: str) -> str:
        return f"{statistics.median(getattr(run, field) for run in runs) * 1000:8.2f}"

    share = statistics.median(run.cpu_share for run in runs)
    print(
        f"{name:<16}{num_streams:>8}{ms('gap_p50')}{ms('gap_p99')}{ms('worst')}{ms('stall')}{share:>9.0%}"
        f"{os.getloadavg()[0]:>7.1f}",
        flush=True,
    )


def measure_dispatch(rate: float, num_open: int, seconds: float) -> Seen:
    """Short requests at a steady rate while many streams are open."""
    length = int(seconds / EVENT_EVERY_S)
    long = [
        ScheduledRequest(id=f"open-{key}", at_s=0.0, prompt_tokens=16, max_tokens=key, prompt_seed=key)
        for key in range(length, length + num_open)
    ]
    short = [
        ScheduledRequest(id=f"new-{i}", at_s=1.0 + i / rate, prompt_tokens=16, max_tokens=4, prompt_seed=i)
        for i in range(int(rate * (seconds - 1.0)))
    ]
    scripts = {request.max_tokens: script(length) for request in long} | {4: script(4)}
    with serving(scripts) as (url, _):
        seen = play_schedule(url, (*long, *short), seconds)
    return Seen({}, seen.cpu_share, seen.dispatch_lags_s[num_open:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--events", type=int, default=200, help="of every stream; fifty a second")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--no-dispatch", action="store_true", help="leave the dispatch lag out")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores; errors in ms, medians of {args.repeat}; load is that of the last minute")
    print(
        f"{'client':<16}{'streams':>8}{'gap p50':>8}{'p99':>8}{'worst':>8}{'stall':>8}{'CPU':>9}{'load':>7}"
    )
    for num_streams in args.streams:
        for name in args.clients:
            runs = [measure(CLIENTS[name], num_streams, args.events) for _ in range(args.repeat)]
            show(name, num_streams, runs)
    if not args.no_dispatch:
        lags = [measure_dispatch(20.0, 60, 10.0).dispatch_lags_s for _ in range(args.repeat)]
        p99 = statistics.median(nearest_rank(each, 0.99) or 0.0 for each in lags)
        print(f"dispatch lag p99, 20 requests/s beside 60 streams: {p99 * 1000:.2f} ms (n = {len(lags[0])})")


if __name__ == "__main__":
    main()
