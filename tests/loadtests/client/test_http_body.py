import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.http_body import ChunkedBody, PlainBody


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def cut(data: bytes, at: set[int]) -> list[bytes]:
    cuts = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


@given(st.data(), st.lists(st.binary(min_size=1, max_size=40), max_size=4))
def test_chunks_are_the_same_however_the_packets_fell(data: st.DataObject, pieces: list[bytes]) -> None:
    stream = chunked(*pieces)
    packets = cut(stream, data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    body = ChunkedBody()
    assert b"".join(body.feed(packet) for packet in packets) == b"".join(pieces)
    assert body.ended


def test_a_payload_is_given_before_its_chunk_is_whole() -> None:
    body = ChunkedBody()
    assert body.feed(b"5\r\nhel") == b"hel"
    assert body.feed(b"lo\r\n") == b"lo"
    assert not body.ended


def test_an_extension_of_a_chunk_is_not_its_size() -> None:
    assert ChunkedBody().feed(b"2;name=1f\r\nok\r\n") == b"ok"


@pytest.mark.parametrize("line", [b"-5\r\n", b"\r\n", b"0x2\r\n", b"hello\r\n", b"1" * 5000])
def test_a_broken_framing_is_named(line: bytes) -> None:
    with pytest.raises(ValueError, match="instead of its size"):
        ChunkedBody().feed(line)


def test_a_body_of_known_length_ends_with_it() -> None:
    body = PlainBody(5)
    assert body.feed(b"hel") == b"hel"
    assert not body.ended
    assert body.feed(b"lo, and more") == b"lo"
    assert body.ended


def test_a_body_of_unknown_length_ends_with_its_connection() -> None:
    body = PlainBody(None)
    assert body.feed(b"anything") == b"anything"
    assert not body.ended
