"""Predictions behind the door's answers: how long until what is inside has been read or has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core import admission, layering
from engine.core.admission import Load
from engine.core.budget import budget_beside
from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.pace import UNLIMITED, Pace
from engine.core.request import Request
from engine.core.row import Row


class Forecast:
    """What the cost model and the answers so far say of the time to come."""

    def __init__(self, model: ModelInfo, pace: Pace) -> None:
        self._model = model
        self._pace = pace
        self._output = MeanOutput()

    def note_answer(self, num_tokens: int) -> None:
        """Takes in how long an answer was that came to its end."""
        self._output.add(num_tokens)

    def load(
        self, row: Row, running: Sequence[Row], waiting: Sequence[Row], config: SchedulerConfig
    ) -> tuple[Load, float]:
        """What a newcomer finds inside, and the time to read its own prompt.

        Args:
            running: rows that run, or start with the next plan.
            waiting: the queue behind them.
        """
        writing = Work.of_decode(row.depth for row in running if row.may_decode)
        load = Load(
            num_waiting=len(waiting),
            waiting_prefill_tokens=sum(row.num_uncached for row in waiting),
            unread_s=self._reading_s([*running, *waiting], writing, config),
            slot_wait_s=self._slot_wait_s(row.request, running, len(waiting), config),
            is_guess=self._pace.is_guess,
        )
        return load, self._reading_s([row], writing, config)

    def _reading_s(self, rows: Sequence[Row], writing: Work, config: SchedulerConfig) -> float:
        """Time to read what is unread of `rows` while those that write go on."""
        rows = [row for row in rows if row.num_unread]
        if not rows:
            return 0.0
        prompts = [(row.num_done, row.num_uncached) for row in rows]
        costs = self._pace.costs
        beside = writing.beside_chunks(layering.shares_pass(self._model))
        chunk = self._chunk_tokens(prompts, beside, config)
        at_once = layering.pass_tokens(chunk, self._model)
        reading_s = sum(_prompt_s(row, costs, at_once) for row in rows)
        num_chunks = sum(-(-tokens // chunk) for _, tokens in prompts)
        between_s = (config.decode_steps_per_chunk - 1) * costs.seconds(writing)
        return reading_s + num_chunks * (costs.seconds(beside) + between_s)

    def _chunk_tokens(self, prompts: Sequence[tuple[int, int]], beside: Work, config: SchedulerConfig) -> int:
        """Prefill tokens of a typical step, at least 1.

        Args:
            prompts: (start, unread tokens) of each.
            beside: what the streams add to a step that reads.
        """
        if not beside.decode_rows:
            return config.solo_chunk_tokens or UNLIMITED
        # Halfway through a prompt is the average depth at which paced chunks are cut.
        depth = max(start + tokens // 2 for start, tokens in prompts)
        chunk = max(1, budget_beside(beside, config, self._pace, self._model).most_tokens(depth))
        paced = config.prefill_policy is PrefillPolicy.PACED
        return layering.tokens_on_grid(chunk, self._model.chunk_grid_tokens) if paced else chunk

    def _slot_wait_s(
        self, request: Request, running: Sequence[Row], num_ahead: int, config: SchedulerConfig
    ) -> float:
        budget = admission.kv_budget_tokens(config, self._model)
        needed = sum(self._model.kv_tokens(r) for r in (request, *(row.request for row in running)))
        free = config.max_running_requests - len(running)
        if needed <= budget and free > 0 and not num_ahead:
            return 0.0
        # All of them, also those still reading: they will be writing by the time a slot falls free.
        step_s = self._pace.costs.seconds(Work.of_decode(row.depth for row in running))
        left = [self._output.left(row.request.max_tokens, row.num_sampled) for row in running]
        return slot_wait_seconds([n * step_s for n in left], num_ahead + max(0, -free))


def _prompt_s(row: Row, costs: CostModel, pass_tokens: int) -> float:
    """Time to read what is unread of one prompt, with nothing beside it."""
    start, under_way_s = row.num_done, 0.0
    if row.layered:
        left = row.layered.end - row.num_prefilled
        start, under_way_s = row.layered.end, left * costs.layered_token_seconds(row.layered)
    tokens = row.request.num_prompt_tokens - start
    return under_way_s + costs.prefill_seconds(tokens, start, pass_tokens)


def slot_wait_seconds(remaining_s: Iterable[float], num_ahead: int) -> float:
    """Time until a slot falls to someone with `num_ahead` others before them.

    Args:
        remaining_s: predicted time each running request still holds its slot.
    """
    ends = sorted(remaining_s)
    if not ends:
        return 0.0
    rounds, place = divmod(num_ahead, len(ends))
    return rounds * ends[-1] + ends[place]


class MeanOutput:
    """How long answers turn out, as a running mean: `max_tokens` is mostly far more than is used."""

    # Weight of the newest answer. About the last twenty answers count.
    _WEIGHT = 0.1

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, num_tokens: int) -> None:
        mean = num_tokens if self._mean is None else self._mean
        self._mean = mean + self._WEIGHT * (num_tokens - mean)

    def left(self, max_tokens: int, num_sampled: int) -> float:
        """Tokens a request with this limit will probably still write; at least 1."""
        expected = max_tokens if self._mean is None else min(max_tokens, self._mean)
        return max(1.0, expected - num_sampled)
