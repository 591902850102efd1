"""Load processes at work together, over Locust's messages: one conducts, each plays and tells what it saw.

A single process does both; Locust's local runner hands its messages straight to its own listeners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event

from loadtests.errors import LoadRunError
from loadtests.play.player import Player
from loadtests.play.sharding import Crew, Job
from loadtests.play.stream_stats import Row, row_of

_PART, _READY, _GO, _STOP, _SAW, _RESULT, _BROKE, _END, _ENDED = (
    f"evenflow {what}" for what in ("part", "ready", "go", "stop", "saw", "result", "broke", "end", "ended")
)
_TELL_EVERY_S = 0.5
_GONE_POLLS = 4  # a worker that Locust is restarting is away for a moment

Record = Mapping[str, Any]


class Hand:
    """A load process: plays its part of a job, and tells what its requests came to.

    Args:
        runner: Locust's.
        show: called here with what every request came to.
        keeps_records: whether whole records are told of requests that belong to no job.
    """

    def __init__(
        self, runner: Any, show: Callable[[Row, Record], None], keeps_records: Callable[[], bool]
    ) -> None:
        self._runner = runner
        self._show = show
        self._keeps_records = keeps_records
        self._player: Player | None = None
        self._rows: list[Row] = []
        self._records: list[Record] = []
        for name, listener in (
            (_PART, self._take), (_GO, self._go), (_STOP, self._stop), (_END, self._end),
        ):  # fmt: skip
            runner.register_message(name, listener)
        gevent.spawn(self._tell_on)

    def saw(self, record: Record) -> None:
        """A request has ended."""
        row = row_of(record)
        self._show(row, record)
        self._rows.append(row)
        if self._player is not None or self._keeps_records():
            self._records.append(record)

    def tell(self) -> None:
        """Sends what has not been told yet."""
        player = self._player
        if self._rows or player is not None:
            progress = _progress(player) if player is not None else {}
            self._runner.send_message(_SAW, {"rows": self._rows, "records": self._records, **progress})
            self._rows, self._records = [], []

    def leave(self) -> None:
        """This process's users have ended: tells the rest, and that it was the rest."""
        self.tell()
        self._runner.send_message(_ENDED, {})

    def _tell_on(self) -> None:
        while True:
            gevent.sleep(_TELL_EVERY_S)
            self.tell()

    def _take(self, msg: Any, **_: Any) -> None:
        if self._player is not None:
            self._player.stop()
        self._player = Player(msg.data, self.saw)
        self._runner.send_message(_READY, {})

    def _go(self, **_: Any) -> None:
        assert self._player is not None
        gevent.spawn(self._play, self._player).link_exception(self._broke)

    def _stop(self, **_: Any) -> None:
        if self._player is not None:
            self._player.stop()

    def _end(self, **_: Any) -> None:
        """Ends this process's users before Locust gives up waiting for it. It tells the rest even when Locust
        had ended them already.
        """
        self._runner.stop()
        self.leave()

    def _play(self, player: Player) -> None:
        result = player.play()
        self.tell()
        if self._player is player:
            self._player = None
            self._runner.send_message(_RESULT, result)

    def _broke(self, playing: gevent.Greenlet) -> None:
        self._player = None
        self._runner.send_message(_BROKE, {"why": repr(playing.exception)})


def _progress(player: Player) -> dict[str, Any]:
    return {"num_sent": player.num_sent, "worst_pause_s": player.worst_gap_s, "running": player.running}


class Conductor:
    """Shares a job out, starts all at once, and puts together what comes back.

    Args:
        workers: ids of the processes that Locust knows to be there now.
        hear: called with what a process tells, job or not: rows, and records if they are wanted.
    """

    def __init__(
        self,
        runner: Any,
        workers: Callable[[], Sequence[str]],
        hear: Callable[[Sequence[Row], Sequence[Record]], None],
    ) -> None:
        self._runner = runner
        self._workers = workers
        self._hear = hear
        self._crew: Crew | None = None
        self._why = "they do not answer"
        self._changed = Event()
        self._over = Event()
        self._met: set[str] = set()  # who took part in this test
        self._telling: set[str] = set()  # who has not told all yet
        listeners = (
            (_READY, self._ready), (_SAW, self._saw), (_RESULT, self._result), (_BROKE, self._broke),
            (_ENDED, self._end),
        )  # fmt: skip
        for name, listener in listeners:
            runner.register_message(name, listener)

    def meet(self) -> None:
        """A test starts with who is there now; others join it when they tell something."""
        self._met = set(self._workers())

    def play(self, job: Job, on_progress: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Plays the job to its end.

        Args:
            on_progress: called about twice a second.

        Returns:
            What `Player.play` gives, and `num_lost`: processes that were lost on the way.

        Raises:
            LoadRunError: all were lost.
        """
        crew = self._crew = Crew(job, self._workers())
        self._over.clear()
        try:
            for worker in crew.workers:
                self._runner.send_message(_PART, crew.part(worker), worker)
            self._await(crew.workers, lambda: crew.is_ready, crew.lose)
            self._to_all(crew, _GO)
            started_s = time.perf_counter()
            self._await(
                crew.workers,
                lambda: crew.is_done or crew.has_aborted,
                crew.lose,
                lambda: on_progress(crew.progress()),
            )
            self._to_all(crew, _STOP)
            self._await(crew.workers, lambda: crew.is_done, crew.lose)
            if not crew.workers:
                raise LoadRunError(f"no load process is left: {self._why}")
            return crew.result(time.perf_counter() - started_s)
        finally:
            self._crew = None
            self._over.set()

    def stop(self) -> None:
        """Ends a job that is being played and waits for what it has come to; of processes that are gone
        nothing is expected.
        """
        if self._crew is not None:
            self._to_all(self._crew, _STOP)
            self._over.wait()

    def gather(self) -> int:
        """Ends the users of other processes and waits for what they have not told yet, however long a busy
        machine makes that; how many processes of this test were gone before they had.
        """
        asked, lost = self._workers(), set[str]()
        self._telling = {*self._met, *asked}
        for worker in asked:
            self._runner.send_message(_END, {}, worker)
        self._await(sorted(self._telling), lambda: self._telling <= lost, lost.add)
        return len(self._telling)

    def _await(
        self,
        workers: Sequence[str],
        is_so: Callable[[], bool],
        lose: Callable[[str], object],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Until it is so; each of the workers that is not there any more is lost."""
        gone = dict.fromkeys(workers, 0)
        while not is_so():
            here = self._workers()
            for worker in workers:
                gone[worker] = 0 if worker in here else gone[worker] + 1
                if gone[worker] == _GONE_POLLS:
                    lose(worker)
            meanwhile()
            self._changed.wait(timeout=_TELL_EVERY_S)
            self._changed.clear()

    def _to_all(self, crew: Crew, message: str) -> None:
        for worker in crew.workers:
            self._runner.send_message(message, {}, worker)

    def _ready(self, msg: Any, **_: Any) -> None:
        if self._crew is not None:
            self._crew.ready(msg.node_id)
            self._changed.set()

    def _saw(self, msg: Any, **_: Any) -> None:
        self._met.add(msg.node_id)
        self._hear(msg.data["rows"], msg.data["records"])
        if self._crew is not None and "num_sent" in msg.data:
            self._crew.hear(msg.node_id, msg.data)

    def _result(self, msg: Any, **_: Any) -> None:
        if self._crew is not None:
            self._crew.hand_in(msg.node_id, msg.data)
            self._changed.set()

    def _end(self, msg: Any, **_: Any) -> None:
        self._met.discard(msg.node_id)
        self._telling.discard(msg.node_id)
        self._changed.set()

    def _broke(self, msg: Any, **_: Any) -> None:
        self._why = msg.data["why"]
        if self._crew is not None:
            self._crew.lose(msg.node_id)
            self._changed.set()
