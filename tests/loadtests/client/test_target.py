import pytest

from loadtests.client.target import Target, first_key, is_address
from loadtests.errors import TargetError


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://[::1]:1/v1", "http://a.b/path"])
def test_addresses(url: str) -> None:
    assert is_address(url)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://x", "http://", "http://a:99999", "http://a:0", "http://a:b", "http://[::1",
     "http://a\n", "http://a b"],
)  # fmt: skip
def test_what_is_no_address_is_one_line(url: str) -> None:
    with pytest.raises(TargetError, match="is not a server's address; write it like"):
        Target(url)


def test_the_first_key_of_a_file_is_neither_a_comment_nor_blank() -> None:
    assert first_key("# the team's\n\n  first \nsecond\n") == "first"


def test_a_file_of_comments_holds_no_key() -> None:
    assert first_key("# none yet\n\n") is None
