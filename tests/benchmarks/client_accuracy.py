"""How exactly load clients see the gaps of streams, against a server that notes when it wrote what.

    python -m tests.benchmarks.client_accuracy --streams 1 8 32 128 --repeat 3

The server is a process of its own and sends 50 events a second on every stream, all streams at the same
moments, as an engine that decodes a batch does; in the middle all of them stall for half a second. An error
is the difference between a gap as written and the same gap as read, so what the server does too late is
nobody's fault. Printed are medians over the repeats: of the errors of all gaps p50, p99 and the worst, and
the worst error of a stream's longest pause; CPU is what the client took in all, its start included.

Compared are our client as it runs in a study (Locust in a process of its own), httpx on threads and on
asyncio, and AIPerf and guidellm when they are on the path. Then, for ours alone, how late requests are sent
at 20 a second while 60 streams are open. Other programs on the machine are in every figure: its load is
printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from engine.core.quantiles import nearest_rank
from engine.core.report import dispatch_lag
from loadtests.selftest.scripted_server import DONE, ROLE_ONLY, Script, ScriptedServer, Write, event, text
from loadtests.traffic.schedule import ScheduledRequest
from tests.benchmarks.accuracy_clients import SPAWN, Client, Gaps, clients, gaps, play

EVENT_EVERY_S = 0.02
STALL_S = 0.5
_START_S = 0.4  # the first event comes when everybody has connected


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one run, seconds."""

    gap_p50: float
    gap_p99: float
    gap_worst: float
    stall: float
    cpu: float


def script(num_events: int) -> Script:
    """Events at a steady pace with one stall in the middle."""
    one = Write(EVENT_EVERY_S, text(emit_ns=1), 1)
    before, after = [one] * (num_events // 2), [one] * (num_events - num_events // 2 - 1)
    usage = event(None, usage_tokens=num_events, prompt_tokens=1)
    end = Write(0.0, event({}, finish="length") + usage + DONE)
    return Script((Write(_START_S, ROLE_ONLY), *before, Write(STALL_S, one.data, 1), *after, end))


def _serve(scripts: Mapping[int, Script], pipe: Connection) -> None:
    with ScriptedServer(scripts) as server:
        pipe.send(server.url)
        while pipe.recv():
            pipe.send(server.sent)


@contextlib.contextmanager
def serving(scripts: Mapping[int, Script]) -> Iterator[tuple[str, Callable[[], Gaps]]]:
    """A scripted server in a process of its own: its address, and the gaps it has written."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(scripts, there), daemon=True)
    process.start()

    def written() -> Gaps:
        here.send(True)
        sent = here.recv()
        return {key: gaps([at / 1e9 for at, n in writes for _ in range(n)]) for key, writes in sent.items()}

    try:
        yield here.recv(), written
    finally:
        here.send(False)
        process.join()


def compare(written: Gaps, seen: Gaps, cpu_s: float) -> Errors:
    """Gap by gap; an event that never arrived is an error of the whole benchmark."""
    for key, true in written.items():
        assert len(true) == len(seen[key]), f"stream {key}: {len(seen[key])} of {len(true)} gaps"
    errors = [abs(a - b) for key, true in written.items() for a, b in zip(true, seen[key], strict=True)]
    stalls = [abs(max(true) - max(seen[key])) for key, true in written.items()]
    return Errors(_quantile(errors, 0.5), _quantile(errors, 0.99), max(errors), max(stalls), cpu_s)


def _quantile(samples: Sequence[float], q: float) -> float:
    value = nearest_rank(samples, q)
    assert value is not None
    return value


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(client: Client, num_streams: int, num_events: int) -> Errors:
    keys = range(num_events, num_events + num_streams)
    with serving({key: script(key) for key in keys}) as (url, written):
        before_s = _cpu_of_children_s()
        seen = client(url, keys)
        return compare(written(), seen, _cpu_of_children_s() - before_s)


def show(name: str, num_streams: int, runs: Sequence[Errors]) -> None:
    def median(field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    ms = "".join(f"{median(f) * 1000:9.2f}" for f in ("gap_p50", "gap_p99", "gap_worst", "stall"))
    print(f"{name:<15}{num_streams:>8}{ms}{median('cpu'):>8.1f}{os.getloadavg()[0]:>7.1f}", flush=True)


def measure_dispatch(rate: float, num_open: int, seconds: float) -> list[float]:
    """How late short requests are sent at a steady rate while many streams are open, seconds."""
    length = int(seconds / EVENT_EVERY_S)
    scripts = {key: script(key) for key in range(length, length + num_open)} | {4: script(4)}
    long = [
        ScheduledRequest(id=f"open-{key}", at_s=0.0, prompt_tokens=16, max_tokens=key, prompt_seed=key)
        for key in scripts
        if key != 4
    ]
    short = [
        ScheduledRequest(id=f"new-{i}", at_s=1.0 + i / rate, prompt_tokens=16, max_tokens=4, prompt_seed=i)
        for i in range(int(rate * (seconds - 1.0)))
    ]
    with serving(scripts) as (url, _):
        records = play(url, (*long, *short), seconds).records
    return [lag for r in records[num_open:] if (lag := dispatch_lag(r)) is not None]


def show_dispatch(repeat: int) -> None:
    runs = [measure_dispatch(20.0, 60, 10.0) for _ in range(repeat)]
    p50, p99 = (statistics.median(_quantile(run, q) for run in runs) * 1000 for q in (0.5, 0.99))
    print(
        f"dispatch lag at 20 requests/s beside 60 streams: p50 {p50:.2f} ms, p99 {p99:.2f} ms "
        f"(n = {len(runs[0])} each, load {os.getloadavg()[0]:.1f})"
    )


def main() -> None:
    available = clients()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--events", type=int, default=200, help="of the shortest stream; fifty a second")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=available, default=list(available))
    parser.add_argument("--no-dispatch", action="store_true", help="leave the dispatch lag out")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, medians of {args.repeat}, errors in ms, CPU in s")
    columns = "".join(f"{title:>9}" for title in ("gap p50", "gap p99", "worst", "stall"))
    print(f"{'client':<15}{'streams':>8}{columns}{'CPU':>8}{'load':>7}")
    for num_streams in args.streams:
        for name in args.clients:
            runs = [measure(available[name], num_streams, args.events) for _ in range(args.repeat)]
            show(name, num_streams, runs)
    if not args.no_dispatch:
        show_dispatch(args.repeat)


if __name__ == "__main__":
    main()
