"""Adapters read without torch: their factors as a package's modules have them, or one sentence of refusal."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime import Engine
from reader_edge_runtime.adapters.adapted_modules import module_factors, open_adapter
from reader_edge_runtime.adapters.adapter_set import ReadAdapter
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import AdapterError, ConfigError
from reader_edge_runtime.package.manifest import Manifest
from tests.fake_target import make_manifest
from tests.fuzz.mutation import memory_limit
from tests.runtime.adapters.adapter_folders import DOWN, RANK, SHAPES, K, Q, V, adapted_manifest, factors, write_adapter

MANIFEST = adapted_manifest()


def check(path: Path, scale: float, manifest: Manifest = MANIFEST) -> None:
    given, found = factors(), module_factors(open_adapter(path), manifest)
    assert found.keys() == given.keys()
    for name, (up, down) in given.items():
        np.testing.assert_allclose(found[name].up, up * np.float32(scale), rtol=1e-6)
        assert found[name].down.tobytes() == down.tobytes()


def test_scales_follow_alpha_ranks_and_patterns(tmp_path: Path) -> None:
    check(write_adapter(tmp_path / "plain"), 2)
    check(write_adapter(tmp_path / "rslora", use_rslora=True), 2 * RANK / 2)
    check(write_adapter(tmp_path / "patterns", lora_alpha=1, alpha_pattern={"layers.0": 9, "o_proj": 8}), 0.25)
    wide = factors() | {DOWN: factors(1, 6)[DOWN]}
    folder = write_adapter(tmp_path / "ranks", wide, rank_pattern={"down_proj": 6}, alpha_pattern={"q_proj": 1})
    found = module_factors(open_adapter(folder), MANIFEST)
    np.testing.assert_allclose(found[DOWN].up, wide[DOWN][0] * np.float32(8 / 6), rtol=1e-6)
    np.testing.assert_allclose(found[Q].up, wide[Q][0] / 4, rtol=1e-6)
    np.testing.assert_allclose(found[K].up, wide[K][0] * 2, rtol=1e-6)


def test_names_of_patterns_are_looked_up(tmp_path: Path) -> None:
    """As many as a folder can have, for as many modules: comparing each with each took minutes."""
    many = {f"m.{number}": (np.ones((1, 1), "f4"), np.ones((1, 1), "f4")) for number in range(1000)}
    pattern = {"7": 4, "m.7": 2} | {f"other{number}": 1 for number in range(30_000)}
    adapter = open_adapter(write_adapter(tmp_path / "many", many, r=1, lora_alpha=3, alpha_pattern=pattern))
    assert [adapter.changes[f"m.{number}"].read().up.item() for number in (7, 8)] == [4, 3]


def test_what_was_read_is_known_again_and_nothing_else(tmp_path: Path) -> None:
    settings: tuple[dict[str, Any], ...] = ({}, {"lora_dropout": 0.5}, {"lora_alpha": 9}, {"given": factors(1)})
    folders = [write_adapter(tmp_path / str(number), **each) for number, each in enumerate(settings)]
    known = [ReadAdapter("pirate", folder, MANIFEST).fingerprint for folder in folders]
    assert [known.index(each) for each in known] == [0, 0, 2, 3]


@pytest.mark.parametrize("name", ["1" * 500_000, "1." * 250_000 + "x"])
def test_a_base_model_s_name_of_any_length_is_compared_at_once(name: str, tmp_path: Path) -> None:
    """A size is searched for in it by a regular expression, which took minutes of a long one."""
    folder = write_adapter(tmp_path / "adapter", base_model_name_or_path=name)
    assert module_factors(open_adapter(folder), adapted_manifest(source_name="tiny-1b")).keys() == SHAPES.keys()


def test_names_of_a_base_model_or_one_that_sees_images_mean_the_same_modules(tmp_path: Path) -> None:
    for number, (old, new) in enumerate([("model.layers", "layers"), ("model.", "model.language_model.")]):
        named = {name.replace(old, new, 1): each for name, each in factors().items()}
        check(write_adapter(tmp_path / str(number), named), 2)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_numbers_of_every_type_are_read(kind: str, tmp_path: Path) -> None:
    values = np.linspace(-3, 3, 64).astype("f4")
    stored = {
        "F16": values.astype("<f2"),
        "BF16": (values.view("<u4") >> 16).astype("<u2"),
        "F64": values.astype("<f8"),
    }[kind]
    folder = write_adapter(tmp_path / "adapter", {Q: factors()[Q]})
    data = stored.tobytes()
    header = json.dumps(
        {
            f"base_model.model.{Q}.lora_A.weight": {"dtype": kind, "shape": [4, 16], "data_offsets": [0, len(data)]},
            f"base_model.model.{Q}.lora_B.weight": {
                **{"dtype": kind, "shape": [16, 4], "data_offsets": [len(data), 2 * len(data)]}
            },
        }
    ).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data * 2)
    found = module_factors(open_adapter(folder), MANIFEST)[Q]
    wanted = stored.astype("f4") if kind != "BF16" else (stored.astype("u4") << 16).view("f4")
    np.testing.assert_array_equal(found.down.reshape(-1), wanted)
    np.testing.assert_array_equal(found.up.reshape(-1), wanted * 2)


def _stored(array: Array, num_heads: int) -> Array:
    """Rows of heads as llama.cpp's converter has them: halves become neighbours."""
    return array.reshape(num_heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


def test_a_gguf_adapter_is_that_of_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra 'export' is not installed")
    from tests.gguf_files import write_gguf

    names = {Q: "attn_q", K: "attn_k", V: "attn_v", DOWN: "ffn_down"}
    heads, tensors = {Q: 4, K: 2}, dict[str, Array]()
    for name, (up, down) in factors().items():
        rows = _stored(up, heads[name]) if name in heads else up
        tensors |= {f"blk.0.{names[name]}.weight.lora_a": down, f"blk.0.{names[name]}.weight.lora_b": rows}
    values = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    check(write_gguf(tmp_path / "adapter.gguf", "llama", values, tensors), 2)
    other = write_gguf(tmp_path / "other.gguf", "qwen2", values, tensors)
    with pytest.raises(AdapterError, match="is an adapter for 'qwen2', and the model is a llama: give the model"):
        module_factors(open_adapter(other), MANIFEST)
    falcon = write_gguf(tmp_path / "falcon.gguf", "falcon-h1", values, tensors)
    with pytest.raises(AdapterError, match=r"multiplied by factors of their config, .*: give its folder"):
        module_factors(open_adapter(falcon), replace(MANIFEST, architecture="falcon_h1"))


def _of(module: str, num_outputs: int = 16, num_inputs: int = 16) -> dict[str, Any]:
    return {"given": {module: (np.ones((num_outputs, RANK), "f4"), np.ones((RANK, num_inputs), "f4"))}}


REFUSED: dict[str, dict[str, Any]] = {  # by words of the refusal
    "experts of a mixture": _of("model.layers.0.mlp.experts.3.down_proj"),
    "sends tokens to experts .*: merge it into a package": _of("model.layers.0.mlp.router"),
    "the embeddings or the logit head": _of("lm_head"),
    "'model.layers.7.self_attn.q_proj', which the model does not have": _of("model.layers.7.self_attn.q_proj"),
    "'q_projector', which the model does not have": _of("q_projector"),
    r"shapes \(12, 4\) and \(4, 16\), where the model has \(16, 16\)": _of(Q, 12),
    r"shapes \(16, 4\) and \(4, 8\), where": _of(Q, 16, 8),
    "not finite: fetch the adapter again": {"given": {Q: (np.full((16, RANK), np.inf, "f4"), factors()[Q][1])}},
    r"'modules_to_save' to \['embed_tokens'\]": {"modules_to_save": ["embed_tokens"]},
    "'peft_type' to 'LOHA'": {"peft_type": "LOHA"},
    "lacks the lora_magnitude_vector": {"use_dora": True},
    "was trained on 'Qwen3-8B' and not on 'tiny-1b'": {"base_model_name_or_path": "Qwen3-8B"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_beside_the_model_is_refused_in_a_sentence(words: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", **REFUSED[words])
    with pytest.raises(AdapterError, match=rf"^'{folder}[^\n]*{words}[^\n]*\.$"):
        module_factors(open_adapter(folder), adapted_manifest(source_name="tiny-1b"))


def test_lengths_of_rows_are_for_merging(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_adapter(tmp_path / "adapter", {Q: factors()[Q]}, use_dora=True)
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {f"base_model.model.{Q}.lora_magnitude_vector": np.ones(16, "f4")}, path)
    with pytest.raises(AdapterError, match=r"\(DoRA\), .*merge it .*`reader-edge export MODEL OUT --adapter FOLDER`"):
        module_factors(open_adapter(folder), MANIFEST)


def test_nothing_is_allocated_for_sizes_that_the_file_does_not_have(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    path = folder / "adapter_model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    for given in (b"[8000000000,4]", b"[4611686018427387904,4]", b"[-4,4]", b"[1e3,4]"):
        header = content[8 : 8 + length].replace(b"[8,4]", given)
        path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
        with memory_limit(64 << 20), pytest.raises(AdapterError, match="cannot be loaded"):
            open_adapter(folder)
    for spoilt in (b"", content[:7], b"\xff" * 8 + content[8:], content[:-1], content + b"\0"):
        path.write_bytes(spoilt)
        with pytest.raises(AdapterError, match=r"^The weights in '.*' cannot be loaded: [^\n]*\.$"):
            open_adapter(folder)


def test_a_package_that_takes_none_names_the_export(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes no adapters such as .*: export it for them .* OUT --takes-adapters`"):
        ReadAdapter("pirate", write_adapter(tmp_path / "adapter"), make_manifest())
    for name in ("", "a b", "../x", "a" * 101, "a/b", "a:b"):
        with pytest.raises(ConfigError, match="can be no adapter's name"):
            ReadAdapter(name, tmp_path / "adapter", MANIFEST)
    assert ReadAdapter("pirate.v-2_x", tmp_path / "adapter", MANIFEST).factors.keys() == SHAPES.keys()


def test_a_package_that_takes_none_says_so_before_it_is_loaded(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge_runtime.engine.assemble", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match="takes no adapters such as 'adapters/pirate': export it"):
        Engine.load(demo_folder, adapters={"pirate": "adapters/pirate"})
