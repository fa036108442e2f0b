import pytest

from coterie.config.compose import compose
from coterie.config.needs import reads_values, warmup_steps, written_by
from coterie.errors import ConfigError


def test_what_nobody_makes_is_told_before_step_0(base, pieces):
    with pytest.raises(ConfigError) as caught:
        compose("train", [*base, f"advantage={pieces}:Needy"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "needs the score 'safety'" in lines[0] and "'safety' in its `writes`" in lines[0]
    assert "needs the span 'cot'" in lines[1] and "'span:cot' in its `writes`" in lines[1]
    assert "'values' is needed" in lines[2] and "no stream 'returns'" in lines[2] and "advantage=gae" in lines[2]


def test_a_reward_that_declares_it_makes_it(base, pieces):
    with pytest.raises(ConfigError) as caught:
        compose("train", [*base, f"reward={pieces}:safety", f"advantage={pieces}:Needy"])
    assert "values" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert compose("train", [*base, f"reward={pieces}:safety", "advantage.score=safety"])


def test_a_misspelt_score_finds_its_name(base):
    with pytest.raises(ConfigError, match="did you mean reward"):
        compose("train", [*base, "advantage.score=reward_"])


def test_streams_of_the_learner_come_after_the_filters(base, pieces):
    pieces.write_text(
        pieces.read_text() + "\nkeep.needs = frozenset({'stream:ref_logprobs', 'stream:sampler_logprobs'})\n"
    )
    with pytest.raises(ConfigError, match=r"ref_logprobs.*filters run before the learner scores"):
        compose("train", [*base, f"filters=[{pieces}:keep]"])
    assert compose("train", [*base, f"transforms=[{pieces}:keep]", f"shaping=[{pieces}:keep]"])


def test_an_unknown_stream_of_the_loss(base, pieces):
    pieces.write_text(pieces.read_text() + "\nLoss.needs = frozenset({'teacher_logprobs', 'ref_logprobs'})\n")
    with pytest.raises(ConfigError, match="needs the stream 'teacher_logprobs'"):
        compose("train", [*base, f"loss={pieces}:Loss"])


def test_a_critic_is_there_when_something_needs_values(base, pieces):
    run = compose("train", [*base, "advantage=gae", "rollout.n=1", "critic.warmup_steps=3"]).run
    assert reads_values(run) and warmup_steps(run) == 3
    run = compose("train", [*base, "advantage=gae", "advantage.values=values", f"transforms=[{pieces}:keep]"]).run
    assert reads_values(run)
    assert not reads_values(compose("train", base).run)
    pieces.write_text(pieces.read_text() + "\nkeep.needs = frozenset({'stream:returns'})\n")
    assert compose("train", [*base, "advantage=gae", f"transforms=[{pieces}:keep]"])
    with pytest.raises(ConfigError, match=r"'returns', which nothing makes.*advantage=gae"):
        compose("train", [*base, f"transforms=[{pieces}:keep]"])
    pieces.write_text(pieces.read_text() + "\nkeep.needs = frozenset({'stream:values'})\n")
    with pytest.raises(ConfigError, match="critic makes it after the filters"):
        compose("train", [*base, "advantage=gae", f"filters=[{pieces}:keep]"])


def test_every_reward_writes_the_reward():
    assert written_by(object()) == {"reward"}
