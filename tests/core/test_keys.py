from engine.core.keys import parse_keys


def test_keys_stand_one_a_line_between_comments_and_blanks() -> None:
    assert parse_keys("# the team's\n\n  first \nsecond\n# third\n") == ("first", "second")


def test_a_file_of_comments_holds_no_key() -> None:
    assert parse_keys("# none yet\n\n") == ()
