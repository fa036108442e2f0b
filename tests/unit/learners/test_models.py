import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from coterie.errors import ModelError
from coterie.learners import models
from coterie.learners.models import load_model, load_tokenizer
from coterie.learners.tiny import build_tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", hidden=16, layers=1, heads=2)


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "model")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(models.hub_constants, "HF_HUB_OFFLINE", True)


def refused(folder, message, load=load_model, **kwargs):
    with pytest.raises(ModelError, match=message) as caught:
        load(str(folder), **kwargs)
    return str(caught.value)


def test_weights_are_fp32_unless_asked(folder):
    assert load_model(str(folder)).dtype == torch.float32
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert not load_model(str(folder)).training
    assert load_model(str(folder), kwargs={"attn_implementation": "eager"}).config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", r"config\.json is missing; it holds: chat_template\.jinja"),
        ("model.safetensors", r"no weights: model\.safetensors or .* is missing"),
    ],
)
def test_missing_files_are_named(folder, file, message):
    (folder / file).unlink()
    refused(folder, message)


def test_missing_tokenizer_files_are_named(folder):
    load_model(str(folder))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    refused(folder, r"no tokenizer files \(tokenizer\.json", load_tokenizer)


def test_missing_shards_are_counted(folder):
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    shards = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for shard, held in shards.items():
        save_file({name: weights[name] for name in held}, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    load_model(str(folder))
    (folder / "model-2.safetensors").unlink()
    refused(folder, r"1 of 2 weight files are missing, first model-2\.safetensors")


def test_broken_files_are_named(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(folder, "weight file is damaged or cut off")
    (folder / "config.json").write_text("{")
    refused(folder, r"config\.json can't be read as JSON")
    (folder / "config.json").write_text("[]")
    refused(folder, r"config\.json holds list")
    (folder / "config.json").write_text("{}")
    refused(folder, "no 'model_type'")
    (folder / "config.json").write_text('{"model_type": "qwen99"}')
    refused(folder, "qwen99")


def test_a_broken_tokenizer_is_named(folder):
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    refused(folder, "model .* can't be loaded", load_tokenizer)


def test_weights_that_do_not_fit_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({n: w for n, w in weights.items() if n != name}, folder / "model.safetensors", {"format": "pt"})
    refused(folder, rf"1 tensors of the architecture are not in the weight files \(first: {name}")
    save_file({**weights, name: weights[name][:-1].clone()}, folder / "model.safetensors", {"format": "pt"})
    refused(folder, rf"first: {name} is \[47, 16\], not \[48, 16\]")


def test_a_tokenizer_without_an_end_is_refused(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    refused(folder, "no end-of-sequence token", load_tokenizer)


def test_the_folder_that_was_meant_is_named(folder):
    refused(folder.parent, r"did you mean .*/model\?")


def test_paths_that_are_no_model(tmp_path):
    refused("", "no model given")
    refused(tmp_path / "nowhere", r"folder '.*nowhere' does not exist")
    refused("./a", r"does not exist \(looked at /")
    (tmp_path / "file.txt").write_text("x")
    refused(tmp_path / "file.txt", "is a file")
    refused("model.gguf", r"coterie model import model\.gguf --out FOLDER")
    (tmp_path / "quantised.gguf").write_text("x")
    refused(tmp_path, r"coterie model import .*quantised\.gguf --out FOLDER")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "LoRA adapter without its base model")


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_hub_id_while_offline_names_the_remedies(offline, load, monkeypatch):
    message = refused("no-such-owner/no-such-model", "hub can't be reached", load)
    assert "coterie model import" in message


def test_an_unreachable_hub_counts_as_offline(monkeypatch):
    monkeypatch.setattr(models.hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(models.hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    refused("no-such-owner/no-such-model", "hub can't be reached")


@pytest.mark.parametrize("key", ["dtype", "torch_dtype", "device_map"])
def test_keywords_that_would_be_ineffective_are_refused(folder, key):
    refused(folder, rf"model_kwargs\.{key} can't be set", kwargs={key: "auto"})


def test_unknown_keywords_are_refused(folder):
    refused(folder, "attention_kind", kwargs={"attention_kind": "x"})
