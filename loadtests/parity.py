"""Whether what was sent and answered is as long as the schedule says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.core.records import Outcome, RequestRecord


@dataclass(frozen=True, slots=True)
class Parity:
    """Planned lengths against what the server counted, over all requests of a run.

    Attributes:
        prompts: whose length the server told; `exact_prompts` of them are as planned.
        outputs: answers that came to their end; `exact_outputs` of them are as planned.
        worst_prompt_error, worst_output_error: in tokens.
    """

    prompts: int
    exact_prompts: int
    worst_prompt_error: int
    outputs: int
    exact_outputs: int
    worst_output_error: int

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def compare_lengths(records: Sequence[RequestRecord]) -> Parity:
    """The parity of a run's records."""
    prompts = [abs(r.prompt_tokens - r.planned_prompt_tokens) for r in records if r.prompt_tokens is not None]
    ended = [r for r in records if r.outcome is Outcome.COMPLETED]
    outputs = [abs(r.output_tokens - r.max_tokens) for r in ended]
    return Parity(*_of(prompts), *_of(outputs))


def _of(errors: Sequence[int]) -> tuple[int, int, int]:
    return len(errors), errors.count(0), max(errors, default=0)
