from __future__ import annotations

import json

import pytest

from engine.core.cost_model import Work
from engine.core.errors import TraceError
from engine.core.events import StepRecord
from engine.core.plan import LayeredPass, PrefillChunk
from engine.core.step_json import read_steps, step_from_mapping, step_to_mapping

LAYERED = LayeredPass(64, 2048, 32)
CHUNKS = (PrefillChunk("a", 64, 256, False, LAYERED), PrefillChunk("b", 0, 8, True))
RECORD = StepRecord(3, 1, 2.5, 0.5, Work.of_step([9], CHUNKS, one_pass=True), CHUNKS, 2, 0)


def test_a_step_comes_back_as_it_was() -> None:
    written = json.loads(json.dumps(step_to_mapping(RECORD, seq=7)))
    assert written["seq"] == 7
    assert step_from_mapping(written) == RECORD


def test_steps_from_before_there_were_layered_passes_are_read() -> None:
    written = step_to_mapping(RECORD, seq=1)
    for chunk in written["prefill"]:
        del chunk["layered"]
    assert [chunk.layered for chunk in step_from_mapping(written).prefill] == [None, None]


@pytest.mark.parametrize(
    "prefill",
    [[[1]], ["x"], [5], 5, [{"start": 1}], [{**step_to_mapping(RECORD, 1)["prefill"][0], "layered": 1}]],
)
def test_what_is_no_chunk_is_said_in_one_line(prefill: object) -> None:
    line = json.dumps(step_to_mapping(RECORD, 1) | {"prefill": prefill}) + "\n"
    with pytest.raises(TraceError, match="line 1 is not a step record"):
        list(read_steps([line]))
