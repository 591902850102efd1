"""What `--record` adds to a step, with short requests and with prompts of 32,000 tokens.

    python -m tests.benchmarks.recorder_overhead

Two servers with a simulated device of exactly 10 ms a step, one of which records, take turns: each streams 8
answers while, ten times a second, a request ends. Whatever a step takes beyond 10 ms is the host's. Prints
the median and the p99 of that excess over all steps of every round, and their differences.

That a prompt of 32,000 tokens comes in at all costs both servers the same, and more than recording it does;
so the first table shows recording alone: a thread that sleeps until a step is due, beside a recorder that is
given such prompts. How late the thread wakes is how long it waited for the interpreter. It is told for the
recorder as it is, and for one that hashes without a rest.

On a machine that others use too, go before them: `chrt -f 10 python -m tests.benchmarks.recorder_overhead`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from engine.config_store import ConfigStore
from engine.core.config import parse_config
from engine.core.cost_model import CostModel
from engine.core.quantiles import nearest_rank
from engine.core.request import Request
from engine.core.timeline import Timeline
from engine.recording import traffic
from engine.recording.traffic import TrafficRecorder
from engine.serve import ServeOptions, bind, serve
from engine.server.app import AppOptions
from engine.server.service import Caller, Service
from engine.server.stats import EndedRequest
from engine.sim_backend import SimBackend

STEP_S = 0.010
COSTS = CostModel(0.0, 0.0, 0.0, STEP_S, 0.0, 0.0)
NUM_STREAMS = 8
ENDS_PER_S = 10
LONG_TOKENS = 32_000
SWITCH_INTERVAL_S = 0.001  # as `engine serve` sets it


ROOMY = parse_config(
    {
        "kv_budget_tokens": 1 << 40,
        "max_waiting_prefill_tokens": 1 << 30,
        "max_queue_wait_s": 86400,
        "prefill_policy": "whole",
        "prefix_cache_bytes": 0,
    }
)


def serve_device(record: str) -> None:
    """The server over the 10 ms device."""
    recorders = [] if record == "-" else [TrafficRecorder(Path(record))]
    service = Service(SimBackend(costs=COSTS), ConfigStore(ROOMY), witnesses=recorders)
    asyncio.run(serve(service, bind("127.0.0.1", 0), AppOptions(), ServeOptions(announce=True)))


@contextlib.contextmanager
def server(record: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.benchmarks.recorder_overhead", "--serve", record]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


async def offer(url: str, prompt_tokens: int, seconds: float) -> None:
    """Streams that go on to the end, and short answers one after the other."""
    async with httpx.AsyncClient(
        base_url=url, timeout=60.0, limits=httpx.Limits(max_connections=None)
    ) as http:
        streams = [asyncio.create_task(_stream(http)) for _ in range(NUM_STREAMS)]
        calls = []
        for number in range(int(seconds * ENDS_PER_S)):
            prompt = [number % 1000, *range(prompt_tokens - 1)]
            calls.append(
                asyncio.create_task(http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}))
            )
            await asyncio.sleep(random.uniform(0.5, 1.5) / ENDS_PER_S)
        for call in await asyncio.gather(*calls):
            assert call.status_code == 200, call.text
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)


async def _stream(http: httpx.AsyncClient) -> None:
    body = {"prompt": "a few words", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_raw():
            pass


def excesses_ms(url: str, prompt_tokens: int, seconds: float) -> list[float]:
    """Of each step in which every stream wrote a token."""
    lines = httpx.get(f"{url}/admin/steps", timeout=60).text.splitlines()
    after = max((json.loads(line)["seq"] for line in lines), default=0)
    asyncio.run(offer(url, prompt_tokens, seconds))
    lines = httpx.get(f"{url}/admin/steps", params={"after": after}, timeout=60).text.splitlines()
    steps = [json.loads(line) for line in lines]
    full = [s for s in steps if s["work"]["decode_rows"] >= NUM_STREAMS]
    return [(s["duration_s"] - STEP_S) * 1e3 for s in full[20:]]


def compare_servers(prompt_tokens: int, rounds: int, seconds: float) -> None:
    excess: dict[str, list[float]] = {"without": [], "with --record": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        server("-") as plain,
        server(f"{folder}/trace.jsonl") as recording,
    ):
        for _ in range(rounds):
            excess["without"] += excesses_ms(plain, prompt_tokens, seconds)
            excess["with --record"] += excesses_ms(recording, prompt_tokens, seconds)
    _print(f"server, prompts of {prompt_tokens:,} tokens", excess)


# -- recording alone --------------------------------------------------------------------------------------


def late_ms(seconds: float, busy: Callable[[], None]) -> list[float]:
    """How late a thread wakes that is due every 10 ms, while `busy` is called ten times a second."""
    late: list[float] = []

    def step() -> None:
        due_s = time.perf_counter()
        for _ in range(int(seconds / STEP_S)):
            due_s += STEP_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            late.append((time.perf_counter() - due_s) * 1e3)

    thread = threading.Thread(target=step)
    thread.start()
    while thread.is_alive():
        busy()
        time.sleep(random.uniform(0.5, 1.5) / ENDS_PER_S)  # never in step with the steps
    return late


def compare_threads(rounds: int, seconds: float) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    request = Request(id="r", prompt=list(range(LONG_TOKENS)), max_tokens=1, arrived_at_s=0.0)
    ended = EndedRequest("r", "completed", LONG_TOKENS, 1, Timeline(0.0, 1, 0.0, 0.0, ended_at_s=0.0))
    gently, names = traffic.gently, ("no recorder", "recorder", "recorder without rests")
    late: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        recorder = TrafficRecorder(Path(folder) / "trace.jsonl")
        for _ in range(rounds):
            late[names[0]] += late_ms(seconds, lambda: None)
            late[names[1]] += late_ms(seconds, lambda: recorder.on_end(request, Caller(), ended))
            traffic.gently = list
            late[names[2]] += late_ms(seconds, lambda: recorder.on_end(request, Caller(), ended))
            traffic.gently = gently
        recorder.close()
    _print(f"a waking thread beside prompts of {LONG_TOKENS:,} tokens", late)


def _print(what: str, samples: dict[str, list[float]]) -> None:
    print(what)
    first = next(iter(samples.values()))
    for name, values in samples.items():
        p50, p99 = (nearest_rank(values, q) or 0.0 for q in (0.5, 0.99))
        more = [p - (nearest_rank(first, q) or 0.0) for p, q in ((p50, 0.5), (p99, 0.99))]
        print(
            f"  {name:24} p50 {p50:7.3f} ms ({more[0]:+.3f})   p99 {p99:7.3f} ms ({more[1]:+.3f})   "
            f"max {max(values):6.2f} ms   n {len(values)}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one round")
    parser.add_argument("--serve", metavar="TRACE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve_device(args.serve)
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    compare_threads(args.rounds, args.seconds)
    for prompt_tokens in (16, LONG_TOKENS):
        compare_servers(prompt_tokens, args.rounds, args.seconds)


if __name__ == "__main__":
    main()
