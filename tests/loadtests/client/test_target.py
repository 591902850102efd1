from loadtests.client.target import first_key


def test_the_first_key_of_a_file_is_neither_a_comment_nor_blank() -> None:
    assert first_key("# the team's\n\n  first \nsecond\n") == "first"


def test_a_file_of_comments_holds_no_key() -> None:
    assert first_key("# none yet\n\n") is None
