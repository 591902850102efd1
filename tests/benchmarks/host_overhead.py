"""What the host adds to a step: the engine loop and HTTP around a device whose steps take 10 ms.

    python -m tests.benchmarks.host_overhead --streams 1 16 64 256

The device is simulated and busy for exactly 10 ms a step, so whatever a step takes beyond that is ours.
Prints for each number of streams the mean step and its excess over 10 ms, the p99 step, how much of one core
the server used, how late events reach the client (from the instant their token left the device), and the
share of tokens that came in an event of their own. The client runs in a process of its own and parses little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

import httpx

from engine.config_store import ConfigStore
from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.quantiles import nearest_rank
from engine.serve import ServeOptions, bind, serve
from engine.server.app import AppOptions
from engine.server.service import Service
from engine.sim_backend import SimBackend

STEP_S = 0.010
COSTS = CostModel(0.0, 0.0, 0.0, STEP_S, 0.0, 0.0)
ROOMY = SchedulerConfig(max_running_requests=1024, max_waiting_requests=1024, kv_budget_tokens=1 << 40)
BODY = json.dumps(
    {
        "prompt": "a few words",
        "max_tokens": 100_000,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_timings": True},
    }
).encode()
SETTLING_S, MEASURED_S = 2.0, 6.0
EMIT_NS = re.compile(rb'"emit_ns": (\d+)')


@dataclass
class Seen:
    """What the client read in the measured time. `lags_s` are of every fiftieth piece."""

    num_events: int = 0
    num_pieces: int = 0
    lags_s: list[float] = field(default_factory=list)
    measuring: bool = False

    def take(self, piece: bytes) -> None:
        if not self.measuring:
            return
        self.num_events += piece.count(b"data: ")
        self.num_pieces += 1
        if self.num_pieces % 50 == 0 and (stamps := EMIT_NS.findall(piece)):
            self.lags_s.append(time.perf_counter() - int(stamps[-1]) / 1e9)


async def stream(port: int, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + BODY)
    try:
        while piece := await reader.read(65536):
            seen.take(piece)
    finally:
        writer.close()


async def watch(port: int, num_streams: int) -> Seen:
    seen = Seen()
    tasks = [asyncio.create_task(stream(port, seen)) for _ in range(num_streams)]
    await asyncio.sleep(SETTLING_S)
    seen.measuring = True
    await asyncio.sleep(MEASURED_S)
    seen.measuring = False
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


def cpu_seconds(pid: int) -> float:
    """User and system time of a process (Linux)."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(url: str, pid: int, num_streams: int) -> None:
    steps_url = f"{url}/admin/steps"
    after = max((json.loads(line)["seq"] for line in httpx.get(steps_url).text.splitlines()), default=0)
    cpu_s, started_s = cpu_seconds(pid), time.perf_counter()
    seen = asyncio.run(watch(int(url.rpartition(":")[2]), num_streams))
    used = (cpu_seconds(pid) - cpu_s) / (time.perf_counter() - started_s)
    lines = httpx.get(steps_url, params={"after": after}, timeout=60).text.splitlines()
    steps = [json.loads(line) for line in lines]
    full = [s["duration_s"] for s in steps if s["work"]["decode_rows"] == num_streams][20:-20]
    mean_s = sum(full) / len(full)
    tokens = num_streams * MEASURED_S / mean_s
    print(
        f"{num_streams:4d} streams   step {mean_s * 1e3:6.2f} ms  {mean_s / STEP_S - 1:+7.1%}   "
        f"p99 {_ms(full, 0.99)}   {used:4.0%} of a core   late p50 {_ms(seen.lags_s, 0.5)} "
        f"p99 {_ms(seen.lags_s, 0.99)}   {seen.num_events / tokens:4.0%} in own events",
        flush=True,
    )


def _ms(seconds: list[float], quantile: float) -> str:
    return f"{(nearest_rank(seconds, quantile) or 0.0) * 1e3:6.2f} ms"


def serve_device() -> None:
    """The server over the 10 ms device."""
    service = Service(SimBackend(costs=COSTS), ConfigStore(ROOMY))
    asyncio.run(serve(service, bind("127.0.0.1", 0), AppOptions(), ServeOptions(announce=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve_device()
        return
    command = [sys.executable, "-m", "tests.benchmarks.host_overhead", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        for num_streams in args.streams:
            measure(url, process.pid, num_streams)
            time.sleep(1.0)
        process.terminate()


if __name__ == "__main__":
    main()
