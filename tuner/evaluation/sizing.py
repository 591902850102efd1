"""Measuring what a target can do, before any traffic is sized for it: a few seconds of probe requests."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.cost_fit import Fit, fit_cost_model
from engine.core.cost_model import CostModel, Work
from engine.core.errors import FitError
from engine.core.events import StepRecord
from engine.core.quantiles import nearest_rank
from engine.core.records import RequestRecord
from loadtests.errors import LoadTestError
from loadtests.run import run_load
from loadtests.traffic.schedule import Schedule, ScheduledRequest, Sizing
from tuner.errors import EngineError
from tuner.evaluation.live import LiveServer
from tuner.evaluation.surroundings import Surroundings, surroundings_of
from tuner.search_space import fixed_chunks, unchunked

_FIRST_PROBE_TOKENS = 64
_LEAST_LONGEST_TOKENS = 256
# Probes grow until one takes this many times the SLO: enough to see how depth weighs.
_ENOUGH_SLOS = 1.5
# Held-out error beyond which the probe is made once more.
_POOR_FIT = 0.35
_PROBE_STREAMS = 3
# A machine is as it was when the quickest of a few reads is within this factor of what was measured then.
_CONFIRMING_READS = 3
_AS_BEFORE = 1.25
_STREAM_TOKENS = 12
_ODD = 5  # tokens from one length to the next
_MIN_PROBE_CHUNK = 16
_TYPICAL_ROWS = 4
_TYPICAL_DEPTH = 256


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a target can do.

    Attributes:
        stall_floor_s: a decode step of a few streams with nothing else to do: no pause can be shorter.
        prefill_error, decode_error: of the cost model on steps it was not fitted to.
        num_steps: steps behind the fit.
        surroundings: what the probes showed besides costs.
        unexplained: which steps the cost model misses so far that nothing must be predicted with it; empty
            when it may.
    """

    costs: CostModel
    prefill_error: float
    decode_error: float
    num_steps: int
    stall_floor_s: float
    context_tokens: int
    surroundings: Surroundings = Surroundings()
    unexplained: str = ""

    def sizing(self, slo_pause_s: float, long_prefill_slos: float) -> Sizing:
        """For `loadtests`: rates at the lengths that traffic for this SLO will have."""
        wanted_s = long_prefill_slos * slo_pause_s
        tokens = max(1, min(self.costs.max_chunk_tokens(wanted_s, 0), self.context_tokens))
        typical = Work(
            num_decodes=1, decode_rows=_TYPICAL_ROWS, decode_kv_tokens=_TYPICAL_ROWS * _TYPICAL_DEPTH
        )
        return Sizing(
            prefill_tokens_per_s=tokens / max(self.costs.prefill_seconds(tokens), 1e-9),
            decode_step_s=max(self.costs.seconds(typical), self.stall_floor_s, 1e-4),
            context_tokens=self.context_tokens,
            slo_pause_s=slo_pause_s,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Capacity:
        """What `to_mapping` gave. Raises: TypeError, KeyError."""
        costs, around = CostModel(**values["costs"]), values.get("surroundings")
        surroundings = Surroundings.from_mapping(around) if around else Surroundings()
        return cls(**{**values, "costs": costs, "surroundings": surroundings})


class Probe:
    """Sends probe requests and reads the step records they leave. Every probe's config differs from the
    server's own in chunking only.

    Args:
        seed: of the prompts.
        longest_read_s: probes grow no further, however long a pause is allowed.
    """

    def __init__(self, server: LiveServer, seed: int, longest_read_s: float = math.inf) -> None:
        self._server = server
        self._client = server.client
        self._setter = server.setter
        self._base = server.setter.original.config
        self._seed = seed
        self._longest_read_s = longest_read_s
        self._num_probes = 0
        self._records: list[StepRecord] = []
        self._seen: list[RequestRecord] = []  # by the client, of the probe streams
        # The engine remembers old steps of other loads; only what follows is ours.
        self._after = max((seq for seq, _ in self._client.steps(0)), default=0)

    def measure(self, slo_pause_s: float) -> Capacity:
        """Runs every probe: prompts alone, unchunked and in chunks, then streams with nobody reading.

        Raises:
            EngineError: the target does not serve them, does not say how long its model's context is, or its
                records are too few.
        """
        _, context_tokens = self._client.model()
        if context_tokens is None:
            raise EngineError(f"{self._client.url} does not say how long its model's context is")
        self._setter.put(unchunked(self._base), "sizing: unchunked")
        enough_s = min(_ENOUGH_SLOS * slo_pause_s, self._longest_read_s)
        longest = self._grow(enough_s, context_tokens // 2)
        generation = self._probe_chunks(longest)
        self._stream(longest, generation)
        fit = self._fit()
        if max(fit.prefill_error, fit.decode_error) > _POOR_FIT:
            self._records = []  # what ran first may have been compiled meanwhile
            self._setter.put(unchunked(self._base), "sizing: once more")
            self._read(longest)
            self._stream(longest, self._probe_chunks(longest))
            fit = self._fit()
        return Capacity(
            costs=fit.costs,
            prefill_error=fit.prefill_error,
            decode_error=fit.decode_error,
            num_steps=fit.num_prefills + fit.num_decodes,
            stall_floor_s=_undisturbed_decode(self._records),
            context_tokens=context_tokens,
            surroundings=surroundings_of(fit.ratios, self._seen),
            unexplained=_unexplained(fit),
        )

    def confirms(self, capacity: Capacity) -> bool:
        """Whether prompts and answers take about as long as measured before. Raises: EngineError."""
        self._setter.put(unchunked(self._base), "sizing: as before?")
        tokens = min(_LEAST_LONGEST_TOKENS, capacity.context_tokens // 2)
        # Prompts that the probes before have not sent: a prefix cache would know those.
        self._num_probes = time.time_ns() % 1_000_000
        self._read(tokens)  # the first touch of a length may compile something
        reading_s = min(self._read(tokens) for _ in range(_CONFIRMING_READS))
        self._client.ask("Hello", _STREAM_TOKENS)
        writing = [record for record in self._collect() if not record.prefill]
        self._records = []
        seen_s = min((r.duration_s for r in writing), default=0.0)
        told_s = min((capacity.costs.seconds(r.work) for r in writing), default=0.0)
        expected_s = capacity.costs.prefill_seconds(tokens)
        return _is_about(reading_s, expected_s) and _is_about(seen_s, told_s)

    def _grow(self, enough_s: float, max_tokens: int) -> int:
        """Reads prompts twice as long each time until one takes long enough; the longest length read."""
        tokens = min(_FIRST_PROBE_TOKENS, max_tokens)
        self._read(tokens)
        self._records = []  # the first touch of a length may compile something
        while True:
            # Long enough twice: another program may have held up the first.
            enough = self._read(tokens) >= enough_s and self._read(tokens) >= enough_s
            if enough and tokens >= _LEAST_LONGEST_TOKENS:
                return tokens
            if tokens * 2 > max_tokens:
                return tokens
            tokens *= 2

    def _probe_chunks(self, longest: int) -> int:
        """Reads prompts alone in chunks of two sizes: smaller passes than those of whole prompts, and later
        ones; the generation.
        """
        for share in (8, 4):
            chunk = max(_MIN_PROBE_CHUNK, longest // share - 1)
            config = dataclasses.replace(fixed_chunks(self._base, chunk), solo_chunk_tokens=chunk)
            generation = self._setter.put(config, f"sizing: chunks of {chunk}")
            self._read(longest)
        return generation

    def _read(self, tokens: int) -> float:
        """Seconds the device took for a prompt with nobody else there: a few tokens shorter each time, for
        traffic's lengths are odd and new, which costs more than round ones that were read before.
        """
        odd = max(1, tokens - 1 - self._num_probes * _ODD % max(1, tokens // 8))
        prompt = self._server.book.prompt(self._request("read", odd, 1, 0.0))
        self._client.ask(prompt.text, 1)
        return sum(record.duration_s for record in self._collect() if record.prefill)

    def _stream(self, longest: int, generation: int) -> None:
        """A few short streams and a deep one, which end one after the other: steps of every size."""
        requests = [
            self._request(f"stream-{i}", _FIRST_PROBE_TOKENS, _STREAM_TOKENS + 6 * i, 0.0)
            for i in range(_PROBE_STREAMS)
        ]
        requests.append(self._request("deep", longest, _STREAM_TOKENS, 0.0))
        schedule = Schedule(
            name="sizing", seed=self._seed, requests=tuple(requests), duration_s=0.5, grace_s=120.0,
            long_prompt_tokens=longest,
        )  # fmt: skip
        try:
            result = run_load(
                schedule, self._server.target, book=self._server.book, expected_generation=generation
            )
        except LoadTestError as error:
            raise EngineError(str(error)) from error
        self._seen += result.records
        self._collect()

    def _request(self, name: str, tokens: int, max_tokens: int, at_s: float) -> ScheduledRequest:
        self._num_probes += 1
        return ScheduledRequest(
            id=f"probe-{name}",
            at_s=at_s,
            prompt_tokens=tokens,
            max_tokens=max_tokens,
            prompt_seed=self._seed * 1_000_003 + self._num_probes,
        )

    def _collect(self) -> list[StepRecord]:
        found = self._client.steps(self._after)
        self._after = max((seq for seq, _ in found), default=self._after)
        records = [record for _, record in found]
        self._records += records
        return records

    def _fit(self) -> Fit:
        try:
            return fit_cost_model(self._records)
        except FitError as error:
            raise EngineError(f"{self._client.url}: {error}") from error


def _unexplained(fit: Fit) -> str:
    try:
        fit.check()
    except FitError as error:
        return str(error)
    return ""


def _undisturbed_decode(records: Sequence[StepRecord]) -> float:
    """A decode step of the probe streams on a quiet machine: the lower quartile, because whatever else
    runs here makes steps longer and never shorter.
    """
    decodes = [record for record in records if not record.prefill]
    full = [r.duration_s for r in decodes if r.work.decode_rows >= _PROBE_STREAMS]
    some = [r.duration_s for r in decodes]
    return nearest_rank(full or some, 0.25) or 0.0


def _is_about(seen_s: float, expected_s: float) -> bool:
    return expected_s / _AS_BEFORE <= seen_s <= expected_s * _AS_BEFORE
