"""A hostile source beside all others: answers stay the target's own, and what cannot be a token is refused by name."""

from pathlib import Path

import pytest

from reader_edge.verify.drafters import AnyWidth, HostileSource
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import DraftError

DEMO = Path(__file__).parents[3] / "models" / "demo" / "package"
VOCAB_SIZE = 6144
_DRAFT_REQUESTS = [DraftRequest(RequestDrafter(RequestContext([1])), 24, 8)] * 20


def _engine(token_ids: range) -> Engine:
    drafter = RetrievalDrafter(DraftConfig(), [HostileSource(token_ids)]).wait()
    engine = Engine.load(DEMO, EngineConfig(threads=1, is_calibrated=False), drafter=drafter)
    engine.decoder.planner = AnyWidth()
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nonsense_and_repeated_siblings_change_no_token(temperature: float) -> None:
    engine = _engine(range(VOCAB_SIZE))
    sampling = SamplingConfig(temperature=temperature, seed=3)
    drafted = engine.generate("# tar", GenerationConfig(48, sampling, ignores_eos=True))
    plain = engine.generate("# tar", GenerationConfig(48, sampling, ignores_eos=True, is_drafted=False))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by_source["hostile"] > 0


@pytest.mark.parametrize("token_ids", [range(VOCAB_SIZE, VOCAB_SIZE + 10), range(2**31 - 1, 2**31 + 9), range(-9, 0)])
def test_ids_outside_the_vocabulary_are_an_error_that_names_the_source(token_ids: range) -> None:
    engine = _engine(token_ids)
    request = engine.decoder.submit(engine.encode_prompt("# tar"), GenerationConfig(48))
    with pytest.raises(DraftError, match="'hostile'"):
        engine.decoder.finish(request)
    with pytest.raises(DraftError, match="'hostile'"):
        engine.generate("# tar", GenerationConfig(48))
    plain = engine.generate("# tar", GenerationConfig(48, is_drafted=False))
    assert plain.token_ids[: request.num_output_tokens] == tuple(request.output_token_ids)


def test_trees_repeat_siblings_and_the_same_seed_gives_the_same_ones() -> None:
    proposals = [HostileSource(range(100), seed=1).propose(_DRAFT_REQUESTS) for _ in range(2)]
    assert proposals[0] == proposals[1]
    pairs = [list(zip(p.parents, p.token_ids, strict=True)) for p in proposals[0]]
    assert any(len(set(each)) < len(each) for each in pairs)
