import pytest

from coterie.config.overrides import parse_overrides, presets
from coterie.config.primary import PRIMARIES
from coterie.errors import ConfigError

TRAIN = PRIMARIES["train"]


def parse(*texts, **options):
    return parse_overrides(texts, TRAIN, **options)


@pytest.mark.parametrize(
    ("text", "key", "value", "hydra"),
    [
        ("rollout.n=4", "rollout.n", 4, "++rollout.n=4"),
        ("optim.lr=1e-6", "optim.lr", 1e-6, "++optim.lr=1e-6"),
        ("+model_kwargs.a=b", "model_kwargs.a", "b", "++model_kwargs.a=b"),
        ("~model_kwargs.a", "model_kwargs.a", None, "~model_kwargs.a"),
        ("rollout={n: 3}", "rollout", {"n": 3}, "++rollout={n: 3}"),
        ("advantage=grpo@trl", "advantage", "grpo@trl", "advantage=grpo@trl"),
        ("filters=[constant,missing]", "filters", ["constant", "missing"], "filters=[constant,missing]"),
        ("filters=constant", "filters", ["constant"], "filters=[constant]"),
        ("filters=none", "filters", [], "filters=[]"),
        ("filters=null", "filters", [], "filters=[]"),
        ("kl_control=null", "kl_control", "none", "kl_control=none"),
        ("experiment=tiny_rl", "experiment", "tiny_rl", "experiment=tiny_rl"),
        ("experiment=null", "experiment", [], "experiment=[]"),
        ("advantage={std: false}", "advantage", {"std": False}, "++advantage={std: false}"),
    ],
)
def test_what_hydra_gets(text, key, value, hydra):
    (request,) = parse(text)
    assert (request.key, request.value, request.hydra) == (key, value, hydra)


def test_files_become_absolute(pieces, monkeypatch):
    monkeypatch.chdir(pieces.parent)
    assert parse("advantage=pieces.py:Advantage")[0].value == f"{pieces}:Advantage"
    spaced = pieces.parent / "a folder, odd"
    spaced.mkdir()
    (spaced / "p.py").write_text(pieces.read_text())
    (request,) = parse("reward='a folder, odd/p.py:reward'")
    assert request.value == f"{spaced}/p.py:reward"
    assert parse(request.hydra)[0].value == request.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty override"),
        ("rollout.n", "can't be read"),
        ("rollout.n 4", "can't be read"),
        ("=4", "name before the = is missing"),
        ("data.template={prompt} x", "two pairs of quotes"),
        ("a b=c", r"letters, digits(.|\n)*\^"),
        ("rollout.n=2,4", "add -m"),
        ("~rollout.n", "can't be taken away"),
        ("~advantage", "without the sign"),
        ("+advantage=grpo", "without the sign"),
        ("advantage@x=grpo", "not offered"),
        ("advantage=[grpo,rloo]", "one choice"),
        ("advantage=3", "a choice is a name"),
        ("advantage=none", "unknown choice"),
        ("advantage._choice_=grpo", "advantage=… to choose"),
        ("filters=[constant,constant]", "there twice"),
        ("filters=[constnt]", "did you mean constant"),
        ("hydra.run.dir=x", "add -m"),
        ("schema=sft", "unknown key here"),
        ("experiment=tiny_lr", "did you mean tiny_rl"),
        ("experiment=3", "a name or a path"),
        ("experiment=absent.yaml", "no such file"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_a_slot_of_another_verb_is_unknown():
    with pytest.raises(ConfigError, match="advantage: unknown key here"):
        parse_overrides(["advantage=grpo"], PRIMARIES["sft"])


def test_sweeps(pieces):
    found = parse("rollout.n=2,4", f"advantage=grpo,{pieces}:Advantage", "hydra/launcher=basic", sweep=True)
    assert [r.sweep for r in found] == [True, True, False]
    assert found[1].hydra == f"advantage=grpo,{pieces}:Advantage"
    with pytest.raises(ConfigError, match="swept as a list"):
        parse("advantage=glob(*)", sweep=True)
    with pytest.raises(ConfigError, match="did you mean grpo"):
        parse("advantage=rloo,grp", sweep=True)


def test_presets_are_the_files_that_ship():
    assert {"tiny_rl", "tiny_sft", "gsm8k_smollm2"} <= set(presets())
