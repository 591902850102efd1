"""The published sample traces, each converted to our format, replayed for a minute at a scale that fits a
simulated engine, recorded again, and compared with what was to be sent.

    EVENFLOW_TRACES=FOLDER python -m tests.benchmarks.trace_samples [--profiles trace-azure]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from engine.core.quantiles import nearest_rank
from engine.core.trace import TraceRow
from loadtests.client.target import Target
from loadtests.errors import ProfileError
from loadtests.play.quick_size import size_up
from loadtests.run import LoadResult, run_load
from loadtests.synthesis.prompts import PromptBook
from loadtests.traces.convert import Conversion, convert
from loadtests.traces.reading import Reading
from loadtests.traffic.profile import Profile
from loadtests.traffic.profiles import load_profile, profile_names
from loadtests.traffic.recorded import read_recorded
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from loadtests.traffic.trace_profiles import build_trace_schedule, find_trace
from tests.loadtests.recordings import BLOCK, read
from tests.tuner.engines import sim_engine

_SLO_PAUSE_S = 0.5
# An engine that was just started takes itself for slow, and refuses long prompts, until it has learnt better
# from steps of its own: some hundred, eight of which read.
_LEARNING = Schedule(
    name="learning",
    seed=1,
    requests=tuple(
        ScheduledRequest(id=str(n), at_s=0.6 * n, prompt_tokens=200 * (n + 1), max_tokens=40, prompt_seed=n)
        for n in range(10)
    ),
    duration_s=6.0,
    grace_s=60.0,
    long_prompt_tokens=1 << 20,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--profiles", nargs="+", choices=profile_names(), default=profile_names())
    arguments = parser.parse_args()
    for profile in map(load_profile, arguments.profiles):
        if profile.trace is not None:
            with tempfile.TemporaryDirectory() as directory:
                _sample(profile, profile.trace.file, Path(directory), arguments.seconds)


def _sample(profile: Profile, file: str, directory: Path, seconds: float) -> None:
    print(f"== {file}")
    try:
        source = find_trace(file)
    except ProfileError as error:
        print(error)
        return
    converted, recording = directory / "converted.jsonl", directory / "recorded.jsonl"
    num_rows, _ = convert([source], converted, Conversion(), Reading())
    print(f"converted    {num_rows} requests")
    with sim_engine(directory, "--record", str(recording)) as url:
        target = Target(url)
        run_load(_LEARNING, target)
        sizing = size_up(target, PromptBook(target), _SLO_PAUSE_S)
        schedule = build_trace_schedule(profile, read_recorded(converted), 1, sizing, seconds)
        num_before = len(read(recording)) if recording.exists() else 0
        result = run_load(schedule, target)
    _compare(schedule, result, read(recording)[num_before:])


def _compare(schedule: Schedule, result: LoadResult, rows: list[TraceRow]) -> None:
    """Requests and rows are matched in the order in which they were sent and came (two at once may swap)."""
    sent = sorted(result.records, key=lambda r: r.scheduled_at_s if r.sent_at_s is None else r.sent_at_s)
    by_id = {request.id: request for request in schedule.requests}
    requests = [by_id[record.id] for record in sent]
    planned = [(r.planned_prompt_tokens, r.max_tokens) for r in sent]
    seen = [(row.prompt_tokens, row.output_tokens) for row in rows]
    lags = [record.sent_at_s - record.scheduled_at_s for record in sent if record.sent_at_s is not None]
    print("scale        " + "; ".join((*schedule.notes, *result.notes)))
    print(f"requests     {len(rows)} recorded of {len(requests)} in {schedule.duration_s:.0f} s")
    became = Counter(record.outcome.value for record in result.records)
    print("outcomes     " + ", ".join(f"{number} {outcome}" for outcome, number in became.items()))
    print(f"lengths      {(Counter(planned) & Counter(seen)).total()} prompts and answers exact")
    wanted, found = _reuse_of_requests(requests), _reuse(row.prefix for row in rows)
    alike = sum(abs(a - b * BLOCK) < BLOCK for a, b in zip(wanted, found, strict=False))
    print(
        f"reuse        {sum(wanted)} tokens planned, {sum(found) * BLOCK} in whole blocks of {BLOCK}; ",
        end="",
    )
    print(f"{alike} prompts alike")
    print(
        f"sent late by {(nearest_rank(lags, 0.5) or 0) * 1000:.1f} ms median, {max(lags) * 1000:.1f} ms max"
    )


def _reuse_of_requests(requests: list[ScheduledRequest]) -> list[int]:
    """Tokens that each prompt has in front as an earlier one has."""
    blocks = _reuse(request.prefix for request in requests)
    return [
        min(request.prompt_tokens, num * request.prefix_block_tokens)
        for request, num in zip(requests, blocks, strict=True)
    ]


def _reuse(prompts: Iterable[tuple[str, ...]]) -> list[int]:
    """Blocks that each prompt has in front as an earlier one has."""
    known: set[int] = set()
    reuse = []
    for names in prompts:
        paths = [0]
        for name in names:
            paths.append(hash((paths[-1], name)))
        reuse.append(next((n for n, path in enumerate(paths[1:]) if path not in known), len(names)))
        known.update(paths)
    return reuse


if __name__ == "__main__":
    main()
