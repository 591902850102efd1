"""What is found out before a search, in words."""

from __future__ import annotations

from loadtests.traffic.schedule import Schedule, uncached_tokens
from tuner.announce import Announcer
from tuner.errors import TunerError
from tuner.evaluation.sizing import Capacity
from tuner.search.limits import Floor
from tuner.traffic.offered import check_streams

_BUSY_ERROR = 0.35


def announce_floor(floor: Floor, slo_pause_s: float, announcer: Announcer) -> None:
    """Whether any config can keep the SLO."""
    verdict = "is out of reach" if floor.verdict(slo_pause_s) else "is possible"
    detail = f"{floor.decode_s:.3f} s, {floor.chunk_s:.3f} s with the smallest chunk → {slo_pause_s:g} s "
    announcer.done("stall floor (decode only)", detail + verdict)


def announce_capacity(capacity: Capacity, announcer: Announcer) -> None:
    """How well the cost model explains what the server does."""
    errors = f"{capacity.prefill_error:.0%} prefill, {capacity.decode_error:.0%} decode"
    announcer.done(f"cost model from {capacity.num_steps} steps", f"held-out error {errors}")
    if capacity.unexplained:
        announcer.warn(f"{capacity.unexplained}; nothing is simulated")
    elif max(capacity.prefill_error, capacity.decode_error) > _BUSY_ERROR:
        announcer.warn(
            "steps of equal work took very different times: this machine is busy with something else, "
            "and what is found now may not hold when it is not"
        )


def announce_traffic(schedule: Schedule, announcer: Announcer) -> None:
    """What each config will meet. Raises: TunerError: nothing is long in it or streams: nothing to tune."""
    measured = (request for request in schedule.requests if request.measured)
    check_streams(schedule.name, max((request.max_tokens for request in measured), default=0))
    new = zip(schedule.requests, uncached_tokens(schedule.requests), strict=True)
    long = [r for r, tokens in new if r.measured and tokens >= schedule.long_prompt_tokens]
    if not long:
        raise TunerError(
            f"no request of {schedule.name} is long ({schedule.long_prompt_tokens} new tokens or more), so "
            "there is no TTFT to make shorter; give it longer prompts or a smaller long_prompt_tokens"
        )
    longest = max(request.prompt_tokens for request in long)
    detail = f"{schedule.num_measured} requests in {schedule.duration_s:.0f} s, {len(long)} of them long "
    announcer.done("traffic sized for this server", detail + f"(up to {longest} tokens)")
    for note in schedule.notes:
        announcer.warn(note)
