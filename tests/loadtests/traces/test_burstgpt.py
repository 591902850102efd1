from pathlib import Path

from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import write


def test_burstgpt_with_a_failed_request_and_later_columns(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = write(tmp_path, head, "5,7,2.5,ChatGPT,472,18,490,Conversation log", "9,,,GPT-4,5,0,5,API log")
    good, failed = open_trace(path).rows
    assert (good.session, good.orig and good.orig.e2e_s) == ("7", 2.5)
    assert failed.orig is not None
    assert failed.orig.status == "failed"


def test_burstgpt_says_which_of_its_columns_have_no_place(tmp_path: Path) -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace = open_trace(write(tmp_path, head, "5,ChatGPT,472,18,490,API log", "6,GPT-4,1,1,2,API log"))
    assert [row.session for row in trace.rows] == [None, None]
    assert trace.notes.lines == (
        "2 values of Model left out: a trace row has no place for it",
        "2 values of Log Type left out: a trace row has no place for it",
    )
