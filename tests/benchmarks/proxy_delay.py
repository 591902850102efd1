"""How much later events reach a client through the recording proxy than without it.

    python -m tests.benchmarks.proxy_delay --streams 8 32

The server of `host_overhead` (10 ms steps, each event stamped with the instant its token left the device),
asked by the same client directly and through `tuner trace record`, in turns. Needs a clock that processes
share (Linux, macOS). On a machine that others use too, go before them: `chrt -f 10 python -m ...`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time

from engine.core.quantiles import nearest_rank
from tests.benchmarks.host_overhead import watch


def lateness_ms(url: str, num_streams: int) -> list[float]:
    """Of every fiftieth piece that came."""
    seen = asyncio.run(watch(int(url.rpartition(":")[2]), num_streams))
    time.sleep(1.0)
    return [lag_s * 1e3 for lag_s in seen.lags_s]


def compare(direct: str, proxy: str, num_streams: int, rounds: int) -> None:
    late: dict[str, list[float]] = {"direct": [], "through the proxy": []}
    for _ in range(rounds):
        for name, url in zip(late, (direct, proxy), strict=True):
            late[name] += lateness_ms(url, num_streams)
    for name, samples in late.items():
        p50, p99 = (nearest_rank(samples, q) or 0.0 for q in (0.5, 0.99))
        print(
            f"{num_streams:4d} streams  {name:18} late p50 {p50:5.2f} ms  p99 {p99:5.2f} ms  n {len(samples)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pipe = subprocess.PIPE
    server = [sys.executable, "-m", "tests.benchmarks.host_overhead", "--serve"]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(server, stdin=pipe, stdout=pipe) as engine:
        assert engine.stdout is not None
        direct = json.loads(engine.stdout.readline())["url"]
        record = [sys.executable, "-m", "tuner.cli", "trace", "record", "--port", "0", "--from", direct]
        with subprocess.Popen([*record, "--out", f"{folder}/t.jsonl"], stderr=pipe, text=True) as recorder:
            assert recorder.stderr is not None
            said = re.search(r"send to (http://[0-9.:]+)", recorder.stderr.readline())
            assert said is not None
            for num_streams in args.streams:
                compare(direct, said[1], num_streams, args.rounds)
            recorder.send_signal(signal.SIGINT)
        engine.terminate()


if __name__ == "__main__":
    main()
