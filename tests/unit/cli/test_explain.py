import pytest

from coterie.cli.explain import explain


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("", ["sections", "rollout", "slots", "advantage", "presets", "tiny_rl"]),
        ("rollout", ["rollout.n", "= 8", "completions a prompt"]),
        ("rollout.stop", ["= []", "list of text"]),
        ("filters", ["filters=[a,b]", "constant"]),
        ("kl_control", ["(none: off)", "adaptive"]),
        ("advantage=grpo", ["advantage.eps", "grpo@trl: eps=0.0001"]),
        ("reward=function", ["reward.path", "must be given"]),
    ],
)
def test_what_is_told(key, told, capsys):
    explain(key)
    out = capsys.readouterr().out
    assert not [text for text in told if text not in out]
