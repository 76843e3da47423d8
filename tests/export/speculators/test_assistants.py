"""Gemma 4's assistants compute what transformers' do, over keys and values of the target as its cache has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner
from transformers import Gemma4TextConfig
from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.speculators.text_attention import LentAttention
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import LentPart
from tests.export.conftest import TinyModel
from tests.export.speculators.assistant_folders import (
    FULL_HEAD_DIM,
    HEAD_DIM,
    NUM_CENTROIDS,
    NUM_CHOSEN,
    TEXT_CONFIG,
    opened_assistant,
    write_assistant,
)
from tests.export.speculators.speculator_folders import HIDDEN_SIZE
from tests.export.speculators.test_speculator_refusals import Change, change_folder, refusal_of
from tests.tiny_models import VOCAB_SIZE

NUM_STEPS = 3


def _reference(tensors: dict[str, torch.Tensor], is_ordered: bool, patch: pytest.MonkeyPatch) -> Any:
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**TEXT_CONFIG),
        backbone_hidden_size=HIDDEN_SIZE,
        use_ordered_embeddings=is_ordered,
        num_centroids=NUM_CENTROIDS,
        centroid_intermediate_top_k=NUM_CHOSEN,
    )
    with patch.context() as built:  # 5.23 builds no model all of whose layers share keys, as its assistants have to be
        modes = property(lambda config: ["reuse"] * config.num_hidden_layers)
        built.setattr(Gemma4TextConfig, "kv_sharing_modes", modes)
        model = Gemma4AssistantForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.parametrize("num_rows", [3, 20], ids=["within the window", "beyond it"])
@pytest.mark.parametrize("is_ordered", [True, False], ids=["centroids", "whole head"])
def test_an_assistant_computes_what_transformers_does(
    is_ordered: bool, num_rows: int, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, target = write_assistant(tmp_path / "assistant", is_ordered), tiny_model("gemma4_text")
    reference = _reference(tensors, is_ordered, monkeypatch)
    opened = opened_assistant(tmp_path / "assistant", target)
    assert opened.lent == ("embed_tokens.weight",)
    source = opened.with_target(find_source(target, None).open_model())
    lent = opened.module.lent
    assert lent is not None
    sliding, full = lent.layers
    assert (sliding, full) == (0, 2)  # of five, the last two of which have none of their own
    torch.manual_seed(0)
    rows = {
        sliding: tuple(torch.randn(1, 2, num_rows, HEAD_DIM) for _ in range(2)),
        full: tuple(torch.randn(1, 1, num_rows, FULL_HEAD_DIM) for _ in range(2)),
    }
    attention = LentAttention(rows)  # type: ignore[arg-type]
    attention.seen = torch.ones(1, num_rows, dtype=torch.bool)
    shared = {"sliding_attention": rows[sliding], "full_attention": rows[full]}
    state, position, token_id = torch.randn(1, 1, HIDDEN_SIZE), torch.tensor([[num_rows]]), 7
    with source.filled([opened.module]), torch.no_grad():
        theirs, ours = state, state
        for _ in range(NUM_STEPS):
            ids = torch.tensor([[token_id]])
            embedding = opened.module.embed_tokens(ids) * HIDDEN_SIZE**0.5
            wanted = reference(
                inputs_embeds=torch.cat([embedding, theirs], -1), position_ids=position, shared_kv_states=shared
            )
            step = opened.module.step(ids, position, ours, attention)
            found = opened.module.logits(step.read)[0, 0]
            named = found.isfinite()
            assert int(named.sum()) == (VOCAB_SIZE // NUM_CENTROIDS * NUM_CHOSEN if is_ordered else VOCAB_SIZE)
            _compare(found[named], wanted.logits[0, 0][named])
            assert (wanted.logits[0, 0][~named] < wanted.logits[0, 0][named].min()).all()
            _compare(step.next_states, wanted.last_hidden_state)
            theirs, ours = wanted.last_hidden_state, step.next_states
            token_id = int(found.argmax())


def _compare(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "kv"), [("fp32", "fp32"), ("fp32", "fp16"), ("int8", "int8"), ("int8", "fp32"), ("int4", "int8")]
)
@pytest.mark.parametrize("is_ordered", [True, False], ids=["centroids", "whole head"])
def test_a_graph_reads_the_cache_as_the_target_does(
    is_ordered: bool, precision: str, kv: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    write_assistant(tmp_path / "assistant", is_ordered)
    options = ExportOptions(precision, check="quick", kv=kv, speculator=tmp_path / "assistant")
    export_model(tiny_model("gemma4_text"), tmp_path / "out", options)
    package = ModelPackage.open(tmp_path / "out")
    part, checks = package.manifest.speculator, package.manifest.checks
    assert part is not None
    assert (part.format, part.num_layers, part.state_ids, part.draft_vocab_size) == ("assistant", 0, (6,), VOCAB_SIZE)
    assert part.lent == LentPart((0, 2), TEXT_CONFIG["sliding_window"] + 1)
    closest = {("fp32", "fp32"): 1e-5, ("fp32", "fp16"): 1e-3}
    assert checks["speculator_error"] < closest.get((precision, kv), 0.3)
    assert checks["speculator_agreement"] > (0.9 if precision != "fp32" else 0.99)
    tensors = [value.const_value for value in ir.load(package.path("speculator.onnx")).graph.initializers.values()]
    own = [each for each in tensors if isinstance(each, ir.ExternalTensor) and each.location == "speculator.onnx.data"]
    assert HIDDEN_SIZE * VOCAB_SIZE not in [each.size for each in own], "the embedding is the target's"
    words = CliRunner().invoke(main, ["info", str(tmp_path / "out")]).stdout
    assert "Gemma 4's assistant, keys and values of the model's layers 0 and 2, 320 tokens, reads states 6" in words


def _sets(**values: Any) -> Change:
    return lambda config, tensors: config.update(values)


def _layer(**values: Any) -> Change:
    return lambda config, tensors: config["text_config"].update(values)


def _orders(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    name = "masked_embedding.token_ordering"
    return lambda config, tensors: tensors.update({name: change(tensors[name])})


_REFUSED: dict[str, tuple[Change, str]] = {
    "another vocabulary": (_layer(vocab_size=336), "a vocabulary of 336, and the model has 320"),
    "another hidden size": (_sets(backbone_hidden_size=128), "hidden states of 128, and the model has 64"),
    "other heads of keys": (_layer(num_global_key_value_heads=2), "of 2 x 32, and the model has 1 x 32"),
    "another size of heads": (_layer(head_dim=32), "of sliding_attention in heads and numbers of 2 x 32"),
    "query heads that do not fit": (_layer(num_attention_heads=3), "3 query heads over 2 key heads"),
    "more layers than tensors": (_layer(num_hidden_layers=1 << 40), "gives num_hidden_layers as 1099511627776"),
    "layers that are no number": (_layer(num_hidden_layers="4"), "gives num_hidden_layers as '4'"),
    "no layers": (_sets(text_config=None), "gives no text_config of the model_type gemma4_text"),
    "layers of another kind": (_layer(model_type="gemma3_text"), "gives no text_config of the model_type gemma4_text"),
    "experts": (_layer(enable_moe_block=True), "sets enable_moe_block"),
    "wide layers": (_layer(use_double_wide_mlp=True), "sets use_double_wide_mlp"),
    "inputs of each layer": (_layer(hidden_size_per_layer_input=16), "sets hidden_size_per_layer_input"),
    "angles of longer texts": (
        _layer(
            rope_parameters={
                "full_attention": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        ),
        "rotary embeddings of the kind 'dynamic'",
    ),
    "a key of unknown meaning": (_sets(turns_twice=True), "sets 'turns_twice' to True"),
    "a switch that is none": (_sets(use_ordered_embeddings="yes"), "gives use_ordered_embeddings as 'yes'"),
    "centroids that divide no vocabulary": (_sets(num_centroids=7), "gives num_centroids as 7"),
    "centroids of a thousand digits": (_sets(num_centroids=10**1000), "000...000"),
    "more centroids than there are": (_sets(centroid_intermediate_top_k=17), "at most the 16 of num_centroids"),
    "no order": (lambda config, tensors: tensors.pop("masked_embedding.token_ordering"), "token_ordering"),
    "an order of too few": (_orders(lambda order: order[1:]), "must be (320,) whole numbers"),
    "an order of fractions": (_orders(lambda order: order.float()), "must be (320,) whole numbers"),
    "a token twice": (_orders(lambda order: order.clamp(min=1)), "must name each of the 320 tokens once"),
    "a token of none": (_orders(lambda order: order + 1), "must name each of the 320 tokens once"),
    "a head that is another": (
        lambda config, tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}),
        "which stand for the same weights and differ",
    ),
    "no head": (lambda config, tensors: tensors.pop("model.embed_tokens.weight"), "lack candidates.weight"),
    "keys of its own": (
        lambda config, tensors: tensors.update({"model.layers.0.self_attn.k_proj.weight": torch.ones(32, 32)}),
        "layers.0.self_attn.k_proj.weight, for which",
    ),
    "a window of billions": (_layer(sliding_window=1 << 31), "has an unusable lent.window (2147483649; expected int"),
    "Unified": (_sets(model_type="gemma4_unified_assistant"), "of the format Gemma 4 Unified's assistant"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_misfits_are_refused_before_the_target_is_read(
    case: str, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = _REFUSED[case]
    write_assistant(tmp_path / "speculator")
    change_folder(tmp_path / "speculator", change)
    assert words in refusal_of(tiny_model("gemma4_text"), tmp_path / "speculator", tmp_path / "out", monkeypatch)


def test_another_familys_model_lends_nothing(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_assistant(tmp_path / "speculator")
    words = refusal_of(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)
    assert "is for a model of Gemma 4, and 'llama' is of the type llama: give the speculator of this model" in words
