import io

import numpy as np
import pytest
from rich.console import Console

from coterie.core.types import Example, Group, Rollout, Score
from coterie.train.board import (
    HEADLINES,
    PLAIN,
    Board,
    Sample,
    choose_sample,
    clock_text,
    plain_line,
    short,
    sparkline,
    value_text,
)
from coterie.train.metric_specs import undeclared


def drawn(board, width=160):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(board)
    return console.file.getvalue()


def group(name, texts, reward=1.0):
    rollouts = [
        Rollout(np.arange(5), np.arange(2, 5), t, "stop", i, scores={"reward": Score(reward)})
        for i, t in enumerate(texts)
    ]
    return Group(Example(name, ({"role": "user", "content": f"question {name}"},)), tuple(rollouts))


def test_the_board_shows_progress_time_metrics_sample_and_notes():
    board = Board("gsm8k", 100)
    for step in range(1, 11):
        board.update(step, {"reward/reward": step / 10, "policy/loss": 0.0, "other/metric": 1.0})
    board.update(11, {"eval/accuracy": 0.5, "eval/accuracy_ci95_low": 0.4, "eval/accuracy_ci95_high": 0.6})
    board.seconds_per_step = 2.0
    board.sample = Sample(11, "What is 1+1?", "It is 2.", "reward 1")
    board.notes.append("78% of groups have zero variance")
    text = drawn(board)
    for part in ("gsm8k", "step 11/100", "2:58 left", "reward/reward", "▁", "█", "0.5 [0.4, 0.6]", "What is 1+1?"):
        assert part in text, part
    assert "! 78% of groups" in text and "other/metric" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_names_are_whole_at_usual_widths(width):
    board = Board("x", 10)
    for step in range(30):
        board.update(step, {name: float(step) for name in HEADLINES})
    board.update(30, {"eval/accuracy": 0.5123, "eval/accuracy_ci95_low": 0.4123, "eval/accuracy_ci95_high": 0.6123})
    text = drawn(board, width)
    assert all(name in text for name in HEADLINES) and "…" not in text and "0.512 [0.412, 0.612]" in text


def test_an_empty_board_can_be_drawn():
    assert "step 0" in drawn(Board("x", 0))


def test_markup_in_a_completion_is_text():
    board = Board("x", 1)
    board.sample = Sample(0, "[bold]p[/bold]", "[/red] [0.5, 1]", "n")
    assert "[bold]p[/bold]" in drawn(board) and "[/red] [0.5, 1]" in drawn(board)


def test_a_long_completion_does_not_fill_the_screen():
    board = Board("x", 1)
    board.sample = Sample(0, "p\n" * 50, "line\n" * 500, "n")
    assert drawn(board).count("\n") < 20


def test_a_sample_comes_from_another_place_each_step():
    groups = [group("a", ["a0", "a1"]), group("b", ["b0", "b1"])]
    assert [choose_sample(s, groups).completion for s in range(4)] == ["a0", "b0", "a1", "b1"]
    assert choose_sample(0, groups).note == "3 tokens, stop, reward 1"
    assert choose_sample(0, []) is None
    assert choose_sample(0, [Group(Example("e", ()), ())]) is None


def test_a_missing_reward_is_said_with_its_reason():
    lost = group("a", ["t"]).with_scores("reward", [Score.missing("timeout")])
    assert choose_sample(0, [lost]).note.endswith("no reward: timeout")


def test_plain_line():
    board = Board("x", 10, step=3, seconds_per_step=60.0)
    assert plain_line(board, {"reward/reward": 0.51234, "time/step_s": 3}) == (
        "step 3/10  reward/reward 0.512  time/step_s 3  7:00 left"
    )


def test_only_declared_metrics_are_shown():
    assert undeclared([*HEADLINES, *PLAIN]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.123"), (1e-6, "1e-06"), (1234.5, "1234"), (3.0, "3"), (float("nan"), "nan"), (float("inf"), "inf")],
)
def test_short(value, text):
    assert short(value) == text


def test_value_with_interval():
    assert value_text("a", {"a": 0.5, "a_ci95_low": 0.25}) == "0.5"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (187, "3:07"), (3729, "1:02:09"), (86400 * 2 + 4 * 3600, "2 d 4 h")]
)
def test_clock(seconds, text):
    assert clock_text(seconds) == text


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1, 1]) == "───"
    assert sparkline([1]) == sparkline([]) == ""
    assert sparkline([0, float("nan"), 1]) == "▁×█"
