import pytest

from coterie.config.pieces import CHOICE
from coterie.config.primary import PRIMARIES
from coterie.config.slots import SLOTS
from coterie.config.source import PieceSource, read_yaml, schema_node, slot_node
from coterie.errors import ConfigError


def test_the_schema_holds_every_section_and_scalar():
    node = schema_node("generate")
    assert set(node) == {"model", "model_kwargs", "out", "format", "force", "run", "data", "rollout"}
    assert node["rollout"]["stop"] == []
    assert schema_node("train")["filters"] == {}
    assert all(set(schema_node(v)) | set(p.slots) == set(p.order) for v, p in PRIMARIES.items())


def test_what_hydra_is_told_there_is():
    source = PieceSource("test", "coterie://")
    assert source.available()
    assert source.is_group("advantage") and not source.is_group("rollout")
    assert source.is_config("advantage/anything") and not source.is_config("advantage/")
    assert source.is_config("experiment//a/b.yaml") and not source.is_config("experiment/tiny_rl")
    assert "grpo" in source.list("advantage", None)
    assert source.load_config("filters/constant").header == {"package": "filters.constant"}
    with pytest.raises(ConfigError, match="no such verb"):
        source.load_config("schema/dance")


def test_an_optional_slot_can_be_off():
    assert slot_node(SLOTS["kl_control"], "none") == {CHOICE: "none"}
    with pytest.raises(ConfigError, match="unknown choice"):
        slot_node(SLOTS["advantage"], "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [", r"preset.yaml:\d is not valid YAML"),
        ("- 1\n", "keys and values"),
        ("defaults: {a: b}\n", "defaults is a list"),
        ("defaults: [1]\n", "defaults is a list"),
        ("a: ${\n", "not valid YAML"),
    ],
)
def test_broken_presets_name_file_and_line(tmp_path, text, message):
    path = tmp_path / "preset.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)


def test_paths_in_a_preset_belong_to_its_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").touch()
    path = tmp_path / "preset.yaml"
    path.write_text(
        "defaults:\n  - override /reward: mine.py:f\n  - override /filters: [constant, other.py:g]\n  - base\n"
    )
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert read_yaml(path)["defaults"] == [
        {"override /reward": f"{tmp_path}/mine.py:f"},
        {"override /filters": ["constant", f"{elsewhere}/other.py:g"]},
        "base",
    ]
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "absent.yaml")
