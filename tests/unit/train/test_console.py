import io
import threading

import numpy as np
import pytest
from rich.console import Console

from coterie.core.types import Example, Group, Rollout
from coterie.train.board import Board
from coterie.train.console import LiveConsole, OffConsole, PlainConsole, make_console

GROUPS = [
    Group(
        Example("a", ({"role": "user", "content": "1+1?\n" * 100},)),
        (Rollout(np.arange(3), np.arange(1, 3), "[2]", "stop"),),
    )
]


def screen(terminal=False):
    return Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None, highlight=False)


@pytest.mark.parametrize(
    ("kind", "terminal", "expected"),
    [
        ("off", True, OffConsole),
        ("plain", True, PlainConsole),
        ("live", False, LiveConsole),
        ("auto", True, LiveConsole),
        ("auto", False, PlainConsole),
    ],
)
def test_kinds(kind, terminal, expected):
    made = make_console(kind, total_steps=3, sample_every=1, console=screen(terminal))
    made.close()
    assert type(made) is expected


def test_plain_is_one_line_a_step_with_samples_now_and_then():
    console, time = screen(), iter([100.0, 102.0, 104.0, 106.0])
    plain = PlainConsole(Board("x", 10), 2, console, lambda: next(time))
    for step in range(1, 5):
        plain.update(step, {"reward/reward": step / 4}, GROUPS)
    plain.note("look")
    plain.close()
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "step 1/10  reward/reward 0.25"
    assert lines[1] == "step 2/10  reward/reward 0.5  0:16 left"
    assert lines[2].startswith("  sample (2 tokens, stop): '1+1? 1+1?") and lines[2].endswith("…' → '[2]'")
    assert [line.split()[0] for line in lines] == ["step", "step", "sample", "step", "step", "sample", "!"]


def test_no_samples_when_off():
    console = screen()
    plain = PlainConsole(Board("x", 10), 0, console)
    plain.update(0, {}, GROUPS)
    assert "sample" not in console.file.getvalue()


def test_live_leaves_the_last_board_and_the_notes():
    console = screen(terminal=True)
    live = LiveConsole(Board("title", 10), 1, console)
    live.update(1, {"reward/reward": 0.5}, GROUPS)
    live.note("a [remark]")
    live.update(2, {"reward/reward": 0.75})
    live.close()
    text = console.file.getvalue()
    last = text[text.rindex("title") :]
    assert "step 2/10" in last and "0.75" in last and "[2]" in last
    assert "! a [remark]" in text


def test_the_default_is_standard_error(capsys):
    plain = make_console("plain", total_steps=1, sample_every=0)
    plain.update(1, {"policy/loss": 1.0})
    out, err = capsys.readouterr()
    assert out == "" and err.strip() == "step 1/1  policy/loss 1"


def test_the_time_left_runs_on_between_steps():
    console, time = screen(terminal=True), [0.0]
    live = LiveConsole(Board("x", 10), 0, console, lambda: time[0])
    for step in range(1, 4):
        time[0] = 100.0 * step
        live.update(step, {})
    assert live.board.seconds_left == 700.0
    time[0] += 60.0
    live._draw()
    assert live.board.seconds_left == 640.0
    time[0] += 600.0
    live._draw()
    assert live.board.seconds_left == 600.0, "a step that takes long does not eat the time of the next"
    live.close()


def test_drawing_while_updating():
    """rich draws in its own thread: a record that comes in meanwhile must not break the picture."""
    console = screen(terminal=True)
    live = LiveConsole(Board("x", 1000), 1, console)
    live._live.refresh_per_second = 1000
    failures = []

    def draw():
        try:
            for _ in range(300):
                live._live.refresh()
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for step in range(300):
        live.update(step, {"reward/reward": step / 300}, GROUPS)
    thread.join()
    live.close()
    assert not failures


def test_plain_prints_about_a_hundred_lines_of_a_long_run_and_every_evaluation():
    console = screen()
    plain = PlainConsole(Board("x", 1000), 0, console)
    for step in range(1, 1001):
        plain.update(step, {"policy/loss": 1.0} | ({"eval/loss": 1.0} if step == 7 else {}))
    steps = [int(line.split()[1].split("/")[0]) for line in console.file.getvalue().splitlines()]
    assert steps == [1, 7, *range(10, 1001, 10)]
