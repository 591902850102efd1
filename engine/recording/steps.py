"""Every step to disk (`--steps`)."""

from __future__ import annotations

import json
from pathlib import Path

from engine.core.events import StepRecord
from engine.core.request import Request
from engine.core.step_json import step_to_mapping
from engine.recording.lines import LineWriter
from engine.server.service import Caller
from engine.server.stats import EndedRequest


class StepRecorder:
    """Writes every step as one line, as `/admin/steps` gives it."""

    def __init__(self, path: Path) -> None:
        self._writer = LineWriter(path, lambda entry: json.dumps(step_to_mapping(*entry)))

    def on_step(self, record: StepRecord, seq: int) -> None:
        self._writer.put((record, seq))

    def on_end(self, request: Request, caller: Caller, ended: EndedRequest) -> None: ...

    def on_refused(self, request: Request, caller: Caller, status: int, generation: int) -> None: ...

    def close(self) -> None:
        self._writer.close()
