"""An examination in words and plots, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.doctor.examine import Examination
from loadtests.doctor.figures import Arrivals, Concurrency, LongPrompts, Owners, Prefixes, Sessions, Spread
from loadtests.doctor.plots import bars, doublings

Lines = Iterator[tuple[str, str]]


def lines(seen: Examination) -> Lines:
    """Label and text of every line; a line that goes on has no label."""
    made_from = f", made from {seen.source}" if seen.format == "evenflow" and seen.source else ""
    yield "trace", f"{seen.name} ({seen.format}{made_from})"
    yield from _requests(seen)
    yield from _arrivals(seen.arrivals)
    yield from _tokens("prompts", seen.prompt_tokens)
    yield from _tokens("answers", seen.output_tokens)
    yield "long prompts", _long(seen.long_prompts)
    yield "prefixes", _prefixes(seen.prefixes)
    yield "concurrency", _concurrency(seen.concurrency)
    yield "users", _owners(seen.users, "requests") if seen.users else "not named"
    yield from _sessions(seen.sessions)


def _requests(seen: Examination) -> Lines:
    coming = seen.arrivals
    rate = f", {coming.rate_per_s:.3g} a second" if coming.rate_per_s else ""
    yield "requests", f"{seen.requests:,} in {_time(coming.duration_s)}{rate}"
    outcomes = [
        f"{count:,} {name}" for name, count in sorted(seen.outcomes.items(), key=lambda item: -item[1])
    ]
    if seen.cancelled:
        outcomes.append(f"{seen.cancelled:,} left by their clients")
    if outcomes:
        yield "", ", ".join(outcomes)


def _arrivals(coming: Arrivals) -> Lines:
    told = []
    if coming.cv is not None:
        told.append(f"CV {coming.cv:.2f} (a Poisson process has 1)")
    if coming.dispersion:
        told.append(
            "dispersion "
            + ", ".join(f"{index:.3g} in {window} s" for window, index in coming.dispersion.items())
        )
    yield "arrivals", "; ".join(told) or "all at once"
    yield "", f"{bars(coming.per_bin)}  at most {coming.busiest_minute:,} in a minute"


def _tokens(label: str, tokens: Spread) -> Lines:
    yield label, f"{_percentiles(tokens)} tokens, {tokens.mean:,.0f} on average"
    yield "", f"{doublings(tokens.per_bin)} tokens, doubling"


def _percentiles(spread: Spread, unit: str = "") -> str:
    names = {"p50": "median"}
    told = [
        f"{names.get(name, name)} {value:,.4g}{unit}" if unit else f"{names.get(name, name)} {value:,}"
        for name, value in spread.percentiles.items()
    ]
    largest = f"{spread.largest:,.4g}{unit}" if unit else f"{spread.largest:,}"
    return ", ".join([*told, f"largest {largest}"])


def _long(long: LongPrompts) -> str:
    return (
        f"{long.requests:,} of {long.threshold_tokens:,} tokens or more ({long.share_of_requests:.1%} of the "
        f"requests) hold {long.share_of_tokens:.0%} of all prompt tokens"
    )


def _prefixes(prefixes: Prefixes) -> str:
    told = []
    if prefixes.ideal_hit is not None and prefixes.shared_rows is not None:
        size = f"{prefixes.block} tokens" if prefixes.block else "uncounted length"
        error = (
            f" ± {prefixes.error:.1%} (one block in {prefixes.one_in} looked at)"
            if prefixes.one_in > 1
            else ""
        )
        told.append(
            f"a cache that never forgets would hold {prefixes.ideal_hit:.1%}{error} of the prompt tokens "
            f"(blocks of {size}); {prefixes.shared_rows:.0%} begin like an earlier prompt"
        )
    if prefixes.recorded_hit is not None:
        told.append(f"the recorded server held {prefixes.recorded_hit:.1%}")
    return "; ".join(told) or "not recorded"


def _concurrency(inside: Concurrency) -> str:
    assumed = f"{inside.stream_rate:g} tokens a second and no time for reading"
    if not inside.recorded:
        basis = f"if answers took {assumed}"
    elif inside.recorded < 1:
        basis = f"whole times of {inside.recorded:.0%} recorded, the rest at {assumed}"
    else:
        basis = "by recorded whole times"
    return f"{inside.mean:.3g} inside on average, {inside.most:,} at most ({basis})"


def _owners(owners: Owners, what: str) -> str:
    told = f"{owners.num:,}, with {_percentiles(owners.requests)} {what}"
    return f"{told}; the busiest makes {owners.busiest:.0%}, the busiest tenth {owners.busiest_tenth:.0%}"


def _sessions(sessions: Sessions | None) -> Lines:
    if sessions is None:
        yield "sessions", "not named"
        return
    yield "sessions", _owners(sessions.owners, "turns")
    if sessions.think_s:
        thinking = _percentiles(sessions.think_s, " s")
        yield "", f"{sessions.followed:,} turns follow another; think times {thinking}"


def _time(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
