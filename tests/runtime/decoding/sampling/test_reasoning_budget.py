"""A budget of thoughts: they end by the template's own tag where it is spent, the same with and without drafts."""

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from reader_edge_runtime import Conversation, Engine, GenerationConfig, GenerationResult, Grammar, SamplingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.reasoning_budget import within_budget
from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.fake_target import make_manifest
from tests.family_tokenizers import family_engine
from tests.random_drafter import RandomDrafter, RightDrafter, make_decoder

WORDS = ["a", "b", "c", "<think>", "</think>"]
LETTERS = list("abcTHINK[]/")
OPEN = {"words": "<think>", "letters": "[THINK]"}
END = {"words": "</think>", "letters": "[/THINK]"}


def tokenizer_of(kind: str) -> Tokenizer:
    """Of a few tokens: words, two of which are the tags, or letters, of which the tags have several."""
    tokens = WORDS if kind == "words" else LETTERS
    fast = FastTokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    fast.decoder = decoders.Fuse()
    fast.add_tokens([token for token in tokens if len(token) > 1])
    return Tokenizer(fast, ChatTemplate(OPEN[kind], {}))


def answered(kind: str, prompts: list[str], drafter: str, config: GenerationConfig, seed: int) -> list[Request]:
    """Requests decoded together. drafter: whose drafts they have, "" for none."""
    tokenizer = tokenizer_of(kind)
    manifest = make_manifest(tokenizer.vocab_size)
    decoder = make_decoder(manifest, RandomDrafter(manifest.vocab_size, 12, seed))
    if drafter == "right":
        decoder = make_decoder(manifest, RightDrafter(decoder.target, 12, seed))  # type: ignore[arg-type]
    config = replace(config, is_drafted=bool(drafter))
    requests = []
    for prompt in prompts:
        token_ids = tokenizer.encode(prompt)
        constraint = within_budget(None, token_ids, token_ids, config, tokenizer, manifest.vocab_size)
        requests.append(decoder.submit(token_ids, config, constraint=constraint))
    decoder.finish(*requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return requests


@pytest.mark.parametrize("kind", ["words", "letters"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [0, 1, 5, 20])
def test_an_answer_within_a_budget_is_the_same_drafted_and_plain(kind: str, temperature: float, budget: int) -> None:
    tokenizer, end = tokenizer_of(kind), END[kind]
    rare = dict.fromkeys(tokenizer.encode(end), -2.0)
    num_ended = num_drafted = 0
    for seed in range(4):
        prompts = [text + OPEN[kind] for text in ("a", "abcab", "ccb" * 3)] + ["ab"]
        sampling = SamplingConfig(temperature=temperature, seed=seed, logit_bias=rare)
        config = GenerationConfig(max_tokens=60, sampling=sampling, max_reasoning_tokens=budget)
        plain = answered(kind, prompts, "", config, seed)
        free = answered(kind, prompts, "", replace(config, max_reasoning_tokens=None), seed)
        for drafter in ("random", "right"):
            drafted = answered(kind, prompts, drafter, config, seed)
            assert [each.output_token_ids for each in drafted] == [each.output_token_ids for each in plain]
            (alone,) = answered(kind, prompts[1:2], drafter, config, seed)
            assert alone.output_token_ids == plain[1].output_token_ids
            num_drafted += sum(each.stats.num_accepted_tokens for each in drafted)
        for ours, theirs in zip(plain[:3], free, strict=False):
            ids = ours.output_token_ids
            assert ids[:budget] == theirs.output_token_ids[:budget]
            if end not in tokenizer.decode(ids[:budget]):
                place = tokenizer.decode(ids).find(end)
                spent = len(tokenizer.decode(ids[:budget]))
                assert place <= spent < place + len(end)  # the thought may have begun its end itself
                num_ended += 1
    assert num_ended > 0
    assert num_drafted > 0


def test_what_a_draft_thinks_beyond_the_budget_gives_way_to_the_end() -> None:
    tokenizer = tokenizer_of("words")
    a, b, c, begin, end = range(5)
    config = GenerationConfig(max_reasoning_tokens=2)
    constraint = within_budget(None, [begin], [begin], config, tokenizer, len(WORDS))
    assert constraint is not None
    tree = DraftTree.root(begin)
    long, short = tree.add(a, 0, "text", 0.9), tree.add(end, 0, "text", 0.5)
    spent = tree.add(b, long, "text", 0.8)
    for token_id in (a, b, c):
        tree.add(token_id, spent, "text", 0.7)
    for token_id in (a, b):
        tree.add(token_id, short, "text", 0.4)
    cut = constraint.cut(tree, 20)
    assert cut.token_ids == [begin, a, end, b, a, b, end]
    assert cut.parents == [-1, 0, 0, 1, 2, 2, 3]
    assert cut.sources[-1] == FORCED_SOURCE
    assert len(constraint.cut(tree, 3)) == 3
    for token_id in (a, b):
        assert not constraint.forced
        assert constraint.mask().all()
        constraint.advance(token_id)
    assert (constraint.forced, constraint.mask().tolist()) == ([end], [False] * 4 + [True])
    assert constraint.cut(DraftTree.chain([b, c, a]), 20).token_ids == [b, end]
    constraint.advance(end)
    assert not constraint.forced
    assert constraint.mask().all()
    assert constraint.cut(tree, 20) == tree


def test_thoughts_that_come_again_share_one_budget() -> None:
    tokenizer = tokenizer_of("letters")
    constraint = within_budget(None, [0], [0], GenerationConfig(max_reasoning_tokens=3), tokenizer, len(LETTERS))
    assert constraint is not None
    for token_id in tokenizer.encode("a[THINK]bb[/THINK]"):  # the third token of thought begins the end, which goes on
        assert not constraint.forced or constraint.forced[0] == token_id
        constraint.advance(token_id)
    for token_id in tokenizer.encode("c[THINK]"):
        assert not constraint.forced
        constraint.advance(token_id)
    assert tokenizer.decode(constraint.forced) == "[/THINK]"


def test_no_character_is_cut() -> None:
    fast = FastTokenizer(
        models.BPE({"<0xC3>": 0, "<0xA9>": 1, "a": 2, "<think>": 3, "</think>": 4}, [], byte_fallback=True)
    )
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast.add_tokens(["<think>", "</think>"])
    tokenizer = Tokenizer(fast, ChatTemplate("<think>", {}))
    config = GenerationConfig(max_reasoning_tokens=1)
    for token_ids in ([2], [0, 1, 2], [0, 0, 0, 0]):  # bytes are certain once something else comes, or are no character
        constraint = within_budget(None, [3], [3], config, tokenizer, 5)
        assert constraint is not None
        for token_id in token_ids:
            assert constraint.forced == ()
            constraint.advance(token_id)
        assert constraint.forced == [4]


def test_a_tag_that_cannot_be_written_is_refused_and_a_model_that_does_not_think_has_no_budget() -> None:
    fast = FastTokenizer(models.BPE({"a": 0}, []))
    config = GenerationConfig(max_reasoning_tokens=1)
    with pytest.raises(ConfigError, match="max_reasoning_tokens is 1, but the tokenizer cannot write '</think>'"):
        within_budget(None, [0], [0], config, Tokenizer(fast, ChatTemplate("<think>", {})), 1)
    assert within_budget(None, [0], [0], config, Tokenizer(fast, ChatTemplate("", {})), 1) is None
    with pytest.raises(ConfigError, match="max_reasoning_tokens is -1, but must be 0 or more"):
        GenerationConfig(max_reasoning_tokens=-1)


PROMPT = "Is it?<think>\n"


def both_ways(engine: Engine, prompt: str | Conversation, config: GenerationConfig) -> GenerationResult:
    """The drafted answer, which is the plain one."""
    drafted = engine.generate(prompt, config)
    assert drafted.token_ids == engine.generate(prompt, replace(config, is_drafted=False)).token_ids
    return drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_s_answer_counts_its_thoughts_and_goes_on_behind_them(engine: Engine, temperature: float) -> None:
    model = family_engine(engine, "qwen")
    (end,) = model.tokenizer.encode("</think>", adds_special_tokens=False)
    sampling = SamplingConfig(temperature=temperature, seed=1, logit_bias={end: -9.0})
    config = GenerationConfig(40, sampling, splits_thinking=True, max_reasoning_tokens=8, ignores_eos=True)
    result = both_ways(model, PROMPT, config)
    assert result.token_ids[8] == end
    assert (result.stats.num_reasoning_tokens, result.finish_reason) == (9, "length")
    assert result.reasoning
    assert result.text
    whole = both_ways(model, PROMPT, replace(config, splits_thinking=False))
    assert whole.token_ids == result.token_ids
    assert "</think>" in whole.text
    assert both_ways(model, PROMPT, replace(config, max_tokens=5)).stats.num_reasoning_tokens == 5
    stopped = both_ways(model, PROMPT, replace(config, splits_thinking=False, stop="</think>"))
    assert (stopped.finish_reason, len(stopped.token_ids)) == ("stop", 9)
    again = both_ways(model, PROMPT + model.tokenizer.spelled(result.token_ids[:4]), replace(config, max_tokens=3))
    assert again.stats.num_reused_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_what_comes_behind_a_budget(engine: Engine, temperature: float) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    model = family_engine(engine, "qwen")
    (end,) = model.tokenizer.encode("</think>", adds_special_tokens=False)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    sampling = SamplingConfig(temperature=temperature, logit_bias={end: -9.0})
    grammar = Grammar("json_schema", json.dumps(schema))
    for budget in (0, 8):
        config = GenerationConfig(60, sampling, grammar=grammar, splits_thinking=True, max_reasoning_tokens=budget)
        result = both_ways(model, PROMPT, config)
        assert result.token_ids.index(end) == budget
        assert json.loads(result.text) in ({"a": 1}, {"a": 2})
        assert json.loads(both_ways(model, "Is it?", config).text) in ({"a": 1}, {"a": 2})


def test_a_budget_of_nothing_prefers_the_template_s_switch(engine: Engine) -> None:
    qwen = family_engine(engine, "qwen").tokenizer
    switch = "{{ messages[0].content }}{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"
    tokenizer = Tokenizer(FastTokenizer.from_str(qwen.to_json()), ChatTemplate(switch, {}))
    model = Engine(engine.package, tokenizer, engine.decoder, engine.width_report)
    ask = {"role": "user", "content": "Is it?"}
    config = GenerationConfig(4, SamplingConfig(), splits_thinking=True, max_reasoning_tokens=0, ignores_eos=True)
    for prompt in ([ask], Conversation([ask])):
        result = model.generate(prompt, config)
        assert (result.stats.num_prompt_tokens, result.stats.num_reasoning_tokens) == (
            len(tokenizer.encode("Is it?<think></think>")),
            0,
        )
    forced = model.generate(Conversation([ask], template_args={"enable_thinking": True}), config)
    assert tokenizer.spelled(forced.token_ids).startswith("</think>")
