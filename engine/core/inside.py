"""Who is inside: a queue, and those that run."""

from __future__ import annotations

from bisect import insort

from engine.core import admission
from engine.core.config import SchedulerConfig
from engine.core.executor import ModelInfo
from engine.core.row import Row


class Inside:
    """Every row from its admission to its end, and the ids of those whose caches are still to be freed.

    Attributes:
        waiting: in the order in which they start.
        running: by request id.
    """

    def __init__(self, model: ModelInfo) -> None:
        self.waiting: list[Row] = []
        self.running: dict[str, Row] = {}
        self._model = model
        self._ended: list[str] = []

    @property
    def rows(self) -> list[Row]:
        return [*self.running.values(), *self.waiting]

    @property
    def is_empty(self) -> bool:
        """Nobody is inside, and nothing is to be freed."""
        return not (self.waiting or self.running or self._ended)

    @property
    def promised_kv(self) -> int:
        """Tokens of KV that those running will have at their ends."""
        return sum(self._model.kv_tokens(row.request) for row in self.running.values())

    def find(self, request_id: str) -> Row | None:
        waiting = (row for row in self.waiting if row.request.id == request_id)
        return self.running.get(request_id) or next(waiting, None)

    def admit(self, row: Row) -> None:
        """Takes it into the queue."""
        insort(self.waiting, row, key=Row.queue_key)

    def start(self, config: SchedulerConfig) -> list[Row]:
        """Lets those at the head of the queue run."""
        starting = self.starting(config)
        del self.waiting[: len(starting)]
        self.running |= {row.request.id: row for row in starting}
        return starting

    def starting(self, config: SchedulerConfig) -> list[Row]:
        """The head of the queue, as far as slots and KV last."""
        waiting = self.waiting[: max(0, config.max_running_requests - len(self.running))]
        if not waiting:
            return []
        starting: list[Row] = []
        budget = admission.kv_budget_tokens(config, self._model) - self.promised_kv
        for row in waiting:
            # A budget lowered below what one waiting request needs must not lock the queue for ever.
            needed = self._model.kv_tokens(row.request)
            if needed > budget and (self.running or starting):
                break
            budget -= needed
            starting.append(row)
        return starting

    def end(self, row: Row) -> None:
        """It waits or runs no longer."""
        if self.running.pop(row.request.id, None):
            self._ended.append(row.request.id)
        else:
            self.waiting.remove(row)

    def take_ended(self) -> tuple[str, ...]:
        """Rows to free; each is given once."""
        ended, self._ended = tuple(self._ended), []
        return ended
