import pytest
import typer

from coterie.cli.border import border, show_error, show_notes
from coterie.errors import ConfigError


def test_long_lines_and_brackets_come_out_whole(capsys):
    path = "/a/" + "very_long_folder_name/" * 10 + "[x].jsonl"
    show_error(f"{path}: row 3\nsecond line")
    error = capsys.readouterr().err
    assert f"error: {path}: row 3\n       second line\n" == error
    show_notes((path,))
    assert path in capsys.readouterr().err


def test_other_exceptions_pass(capsys):
    with pytest.raises(ZeroDivisionError), border():
        raise ZeroDivisionError
    with pytest.raises(typer.Exit) as caught, border():
        raise ConfigError("")
    assert caught.value.exit_code == 2
