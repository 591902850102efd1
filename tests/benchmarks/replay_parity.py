"""How exactly a recording is replayed: recorded, replayed at speed 1 and recorded again, on one config.

    python -m tests.benchmarks.replay_parity [--requests 200] [--every 0.1]

Real processes on loopback, the simulated device, the real load client. Judge it on a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.core.quantiles import nearest_rank
from loadtests.run import LoadResult
from loadtests.traffic.replay import schedule_from_trace
from tests.loadtests.recordings import BLOCK, arrivals, lengths, record, sharing, team_traffic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two requests")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        _, first = record(team_traffic(arguments.requests, arguments.every), Path(directory, "first"))
        schedule = schedule_from_trace(first, 1, block_tokens=BLOCK)
        result, second = record(schedule, Path(directory, "second"))
    print(f"requests           {len(second)} of {len(first)}")
    print(f"lengths            {_equal(lengths(first), lengths(second))} of {len(first)} exact")
    print(f"shared blocks      {_equal(sharing(first), sharing(second))} of {len(first)} prompts the same")
    moved = [abs(b - a) for a, b in zip(arrivals(first), arrivals(second), strict=False)]
    print(f"arrivals at server {_quantiles(moved)} off the recording (each from its first)")
    _print_client(result)


def _print_client(result: LoadResult) -> None:
    lags = [r.sent_at_s - r.scheduled_at_s for r in result.records if r.sent_at_s is not None]
    parity = result.parity
    print(f"sent by client     {_quantiles(lags)} after its instant")
    print(f"parity             {parity.exact_prompts} of {parity.prompts} prompts, ", end="")
    print(f"{parity.exact_outputs} of {parity.outputs} outputs exact")
    print("valid" if result.validity.ok else "; ".join(result.validity.reasons))


def _equal(first: Sequence[object], second: Sequence[object]) -> int:
    return sum(a == b for a, b in zip(first, second, strict=False))


def _quantiles(seconds: list[float]) -> str:
    shown = (f"{(nearest_rank(seconds, q) or 0.0) * 1000:.1f}" for q in (0.5, 0.95, 1.0))
    return " / ".join(shown) + " ms (median / p95 / max)"


if __name__ == "__main__":
    main()
