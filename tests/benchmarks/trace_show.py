"""How long `tuner trace show` takes over a long trace, and how much memory.

    python -m tests.benchmarks.trace_show --rows 1000000 --formats evenflow mooncake azure

Writes a seeded trace of each format to a temporary folder and shows it in a process of its own; prints the
file's size, wall-clock and processor time, and the process's peak memory. Rows of our own format carry users,
sessions, what the server did, and on average eleven prefix blocks of 64 tokens, most of which came before.
With `--convert` it also converts each to our own format.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

TARGET_S, TARGET_MB = 30.0, 500.0


def arrivals(num_rows: int, rng: random.Random) -> Iterator[tuple[float, int, int]]:
    """Time, prompt and answer tokens of a request."""
    t = 0.0
    for _ in range(num_rows):
        t += rng.expovariate(5.0)
        yield t, min(30_000, 1 + int(rng.lognormvariate(6.0, 1.0))), 1 + int(rng.lognormvariate(4.5, 1.0))


def evenflow(num_rows: int, rng: random.Random) -> Iterator[str]:
    yield '{"v":1,"kind":"header","t0":"2026-11-30T09:00:00+00:00","block":64,"salt_id":"ab12cd34"}'
    for number, (t, prompt, output) in enumerate(arrivals(num_rows, rng)):
        session = rng.randrange(max(1, num_rows // 6))
        blocks = -(-prompt // 64)
        names = [f"{(session % 5000 * 7919 + b) * 2654435761 % 2**48:012x}" for b in range(blocks - 1)]
        row = {
            "id": f"req-{number}",
            "t": round(t, 6),
            "in": prompt,
            "out": output,
            "user": f"{session % 997:012x}",
            "session": f"{session:012x}",
            "turn": 1 + number % 7,
            "think_s": round(rng.expovariate(0.1), 6),
            "prefix": [*names, f"{number:012x}"],
            "stream": True,
            "orig": {"status": "finished", "queue_s": 0.01, "ttft_s": 0.4, "e2e_s": round(output / 40, 3)},
        }
        yield json.dumps(row, separators=(",", ":"))


def mooncake(num_rows: int, rng: random.Random) -> Iterator[str]:
    for number, (t, prompt, output) in enumerate(arrivals(num_rows, rng)):
        start = rng.randrange(5000) * 64
        ids = [*range(start, start + prompt // 512), 10_000_000 + number]
        length = {"timestamp": int(t * 1000), "input_length": prompt, "output_length": output}
        yield json.dumps(length | {"hash_ids": ids})


def azure(num_rows: int, rng: random.Random) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    start = datetime(2024, 5, 10)
    for t, prompt, output in arrivals(num_rows, rng):
        stamp = (start + timedelta(seconds=t)).isoformat(" ", "microseconds")
        yield f"{stamp}+00:00,{prompt},{output}"


def bailian(num_rows: int, rng: random.Random) -> Iterator[str]:
    for number, (t, prompt, output) in enumerate(arrivals(num_rows, rng)):
        start = rng.randrange(5000) * 2048
        follows = number > 10 and rng.random() < 0.5
        row = {
            "chat_id": number,
            "parent_chat_id": number - rng.randrange(1, 10) if follows else -1,
            "timestamp": round(t, 3),
            "input_length": prompt,
            "output_length": output,
            "type": "text",
            "turn": 1 + follows,
            "hash_ids": [*range(start, start + prompt // 16), 10_000_000 + number],
        }
        yield json.dumps(row)


FORMATS = {form.__name__: form for form in (evenflow, mooncake, azure, bailian)}


def measure(*arguments: str) -> tuple[float, float, float]:
    """Wall-clock and processor seconds and peak MB of a `tuner` command."""
    started_s = time.perf_counter()
    with open(os.devnull, "w") as nowhere:
        command = [sys.executable, "-m", "tuner.cli", *arguments]
        actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"tuner {' '.join(arguments)} failed")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return time.perf_counter() - started_s, usage.ru_utime + usage.ru_stime, kilobytes / 1024


def report(what: str, path: Path, seconds: float, busy_s: float, megabytes: float) -> None:
    size = path.stat().st_size / 1e6
    within = "" if seconds <= TARGET_S and megabytes <= TARGET_MB else "   beyond the target"
    took = f"{seconds:>8.1f} s (busy {busy_s:.1f} s) {megabytes:>8.0f} MB"
    print(f"{what:<20}{size:>8.0f} MB file {took}{within}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--convert", action="store_true")
    arguments = parser.parse_args()
    print(f"{arguments.rows:,} rows; the target is {TARGET_S:g} s and {TARGET_MB:g} MB")
    with tempfile.TemporaryDirectory(prefix="evenflow-") as folder:
        for name in arguments.formats:
            path, out = Path(folder) / name, Path(folder) / "out"
            with path.open("w") as file:
                file.writelines(f"{line}\n" for line in FORMATS[name](arguments.rows, random.Random(1)))
            report(f"show {name}", path, *measure("trace", "show", str(path), "--context", "32768"))
            if arguments.convert:
                report(f"convert {name}", path, *measure("trace", "convert", str(path), str(out), "--force"))
            path.unlink()


if __name__ == "__main__":
    main()
