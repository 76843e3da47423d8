"""Big-little decoding: what stays is likely enough by the model itself; chains end where the small one is unsure."""

from pathlib import Path

import numpy as np
import pytest

from reader_edge_lossy.big_little import BigLittle
from reader_edge_runtime import Engine
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.reader_edge.package_copy import PackageCopy

VOCAB_SIZE = 8
ENDS = (5,)
MANIFEST = make_manifest(VOCAB_SIZE, max_context=4096, eos_token_ids=ENDS)
TARGET = FakeTarget(MANIFEST)


def decoded(strength: BigLittle, num_tokens: int) -> Request:
    decoder = make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 16, seed=2))
    request = decoder.submit(
        [1, 2], GenerationConfig(num_tokens, acceptance=strength.rule(ENDS, None), ignores_eos=True)
    )
    decoder.finish(request)
    return request


def test_another_choice_has_the_probability_of_its_option() -> None:
    request = decoded(BigLittle(distance=2.0), 2000)
    text, changed, num_ends = request.token_ids[: request.num_prompt_tokens], [], 0
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text).astype(np.float64)
        distances = np.log(np.exp(logits - logits.max()).sum()) - (logits - logits.max())
        own = int(logits.argmax())
        if token_id != own:
            changed.append(float(distances[token_id]))
            assert own not in ENDS
            assert token_id not in ENDS
        num_ends += token_id in ENDS
        text.append(token_id)
    assert min(changed) > 0
    assert max(changed) <= 2.0 + 1e-6
    assert len(changed) > 100
    assert num_ends > 20


def test_at_distance_zero_the_tokens_are_those_of_exact_decoding() -> None:
    assert decoded(BigLittle(distance=0.0), 300).output_token_ids == reference(MANIFEST, [1, 2], GenerationConfig(300))


def test_an_engine_drafts_with_the_small_model_that_it_is_given(demo_folder: Path, tmp_path: Path) -> None:
    small = PackageCopy(demo_folder, tmp_path / "small")
    small.write_file("model.onnx", (small.folder / "model.onnx").read_bytes() + b"\x32\x05small")  # its doc_string
    sources, config = DraftSources(draft_model=small.folder), EngineConfig(is_calibrated=False)
    engine = Engine.load(demo_folder, config, sources=sources, rule=BigLittle(distance=2.0))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    result = engine.generate("# tar", GenerationConfig(40, ignores_eos=True))
    assert result.stats.drafted_by_source["draft model"] > 0
    assert result.deviation["rule"] == "big-little"
    undrafted = Engine.load(demo_folder, sources=sources, rule=BigLittle(), is_drafted=False)
    assert undrafted.generate("# tar", GenerationConfig(4)).deviation["num_changed"] == 0


def test_distances_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"distance is -1, but must be from 0 to 100"):
        BigLittle(distance=-1)
