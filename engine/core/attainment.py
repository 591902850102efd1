"""How many requests got what their class promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.quantiles import wilson_interval
from engine.core.records import RequestRecord
from engine.core.report import meets
from engine.core.slo import Slo, SloClass


@dataclass(frozen=True, slots=True)
class ClassAttainment:
    """How many requests of a class got what it promises.

    Attributes:
        num_met: succeeded within both limits, of `num_scheduled`.
        low, high: of the share, its 95 % interval (Wilson).
    """

    name: str
    slo: Slo
    num_scheduled: int
    num_met: int
    low: float
    high: float

    @property
    def attainment(self) -> float:
        return self.num_met / self.num_scheduled if self.num_scheduled else 0.0

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self) | {"attainment": self.attainment}


def attainment_by_class(
    records: Iterable[RequestRecord], classes: Iterable[SloClass], pause_s: float
) -> tuple[ClassAttainment, ...]:
    """The attainment of every class, warm-up left out.

    Args:
        pause_s: limit of the classes that have none of their own.
    """
    measured = [record for record in records if record.measured]
    return tuple(
        _attainment(one.name, one.slo(pause_s), [r for r in measured if r.slo_class == one.name])
        for one in classes
    )


def _attainment(name: str, slo: Slo, records: Sequence[RequestRecord]) -> ClassAttainment:
    met = sum(meets(record, slo, 0) for record in records)  # one TTFT limit, for long ones and others
    return ClassAttainment(name, slo, len(records), met, *wilson_interval(met, len(records)))
