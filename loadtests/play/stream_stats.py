"""What the web page shows of streams: a table by kind of user, and how TTFT and pauses went over time."""

from __future__ import annotations

import csv
import io
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.core.quantiles import nearest_rank, supported
from engine.core.records import LOST

_BUCKET_S = 2.0
_MOST_BUCKETS = 900  # half an hour; what is older leaves the charts
_MOST_SAMPLES = 5_000  # of one kind, in the table
COLUMNS: Mapping[str, str] = {
    "name": "Users",
    "requests": "Requests",
    "failed": "Failed",
    "ttft_p50": "TTFT p50 (ms)",
    "ttft_p95": "TTFT p95 (ms)",
    "ttft_max": "TTFT worst (ms)",
    "pause_p50": "Worst pause p50 (ms)",
    "pause_p99": "Worst pause p99 (ms)",
    "pause_max": "Worst pause of all (ms)",
}


Row = Mapping[str, Any]


def row_of(record: Mapping[str, Any]) -> Row:
    """What is shown of a raw record, as JSON values: `kind`, `failed`, and in seconds `ttft_s` and
    `worst_pause_s`, which are None when there was none.
    """
    stamps = [event[0] for event in record["events"]]
    return {
        "kind": record["kind"],
        "failed": record["outcome"] in LOST,
        "ttft_s": stamps[0] - record["scheduled_at_s"] if stamps else None,
        "worst_pause_s": max((b - a for a, b in itertools.pairwise(stamps)), default=None),
    }


@dataclass(slots=True)
class _Kind:
    """One kind of user; the latest samples, seconds."""

    requests: int = 0
    failed: int = 0
    ttft_max_s: float | None = None
    pause_max_s: float | None = None
    ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    def add(self, row: Row) -> None:
        ttft, pause = row["ttft_s"], row["worst_pause_s"]
        self.requests += 1
        self.failed += row["failed"]
        if ttft is not None:
            self.ttfts_s.append(ttft)
            self.ttft_max_s = max(ttft, self.ttft_max_s or 0.0)
        if pause is not None:
            self.pauses_s.append(pause)
            self.pause_max_s = max(pause, self.pause_max_s or 0.0)


class Board:
    """Takes in requests as they end, in any order of kinds."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._buckets: dict[int, dict[str, dict[str, list[float]]]] = {}

    def add(self, at_s: float, row: Row) -> None:
        """A request that ended at `at_s`, on any clock that does not go back."""
        self._kinds.setdefault(row["kind"], _Kind()).add(row)
        kinds = self._buckets.setdefault(int(at_s / _BUCKET_S), {})
        bucket = kinds.setdefault(row["kind"], {"ttft_s": [], "worst_pause_s": []})
        for what, seconds in bucket.items():
            if row[what] is not None:
                seconds.append(row[what])
        while len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[min(self._buckets)]

    def table(self) -> list[dict[str, Any]]:
        """One row for each kind, with the keys of `COLUMNS`; empty cells where samples are too few."""
        return [_row(name, kind) for name, kind in sorted(self._kinds.items())]

    def charts(self, now_s: float) -> dict[str, Any]:
        """Median TTFT and longest pause of every interval, by kind: (seconds from now, seconds)."""
        return {
            "ttft": self._lines("ttft_s", now_s, _median),
            "pause": self._lines("worst_pause_s", now_s, max),
        }

    def csv(self) -> str:
        """The table as a CSV file."""
        file = io.StringIO()
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        rows.writerows(self.table())
        return file.getvalue()

    def clear(self) -> None:
        self._kinds.clear()
        self._buckets.clear()

    def _lines(
        self, what: str, now_s: float, sum_up: Callable[[list[float]], float | None]
    ) -> dict[str, list[tuple[float, float | None]]]:
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for index, kinds in sorted(self._buckets.items()):
            at_s = min(0.0, (index + 0.5) * _BUCKET_S - now_s)
            for kind, values in kinds.items():
                if values[what]:
                    lines.setdefault(kind, []).append((at_s, sum_up(values[what])))
        return lines


def _row(name: str, kind: _Kind) -> dict[str, Any]:
    return {
        "name": name,
        "requests": kind.requests,
        "failed": kind.failed,
        "ttft_p50": _quantile(kind.ttfts_s, 0.50),
        "ttft_p95": _quantile(kind.ttfts_s, 0.95),
        "ttft_max": _ms(kind.ttft_max_s),
        "pause_p50": _quantile(kind.pauses_s, 0.50),
        "pause_p99": _quantile(kind.pauses_s, 0.99),
        "pause_max": _ms(kind.pause_max_s),
    }


def _median(samples: list[float]) -> float | None:
    return nearest_rank(samples, 0.5)


def _quantile(samples: deque[float], q: float) -> float | str:
    return _ms(nearest_rank(list(samples), q)) if supported(q, len(samples)) else ""


def _ms(seconds: float | None) -> float | str:
    return "" if seconds is None else round(seconds * 1000, 1)
