"""What each source adds: sets of sources by the clock, beside the same plain answers."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.bench.comparison import bench_decode
from reader_edge.bench.fixed_budget import SourceStock
from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts

QUESTIONS = [EvalPrompt("# tar\n\n", "pages"), EvalPrompt("1 2 3 1 2 3 1 2", "numbers")]
CONFIG = GenerationConfig(max_tokens=24, ignores_eos=True)


@pytest.fixture
def datastore(engine: Engine, tmp_path: Path) -> str:
    builder = DatastoreBuilder(engine.tokenizer.fingerprint(), engine.package.manifest.vocab_size)
    builder.add(list(engine.generate(QUESTIONS[0].prompt, CONFIG).token_ids))
    builder.end_document()
    builder.write(tmp_path / "answers.ds", DatastoreFacts(("answers",), 0), lambda stage: None)
    return str(tmp_path / "answers.ds")


def test_each_set_drafts_from_its_sources_alone_and_emits_the_plain_tokens(engine: Engine, datastore: str) -> None:
    sets = SourceStock.of_engine(engine, [datastore]).engines(engine)
    names = ["context", "context + datastore", "context + logits", "context + logits + datastore"]
    assert list(sets) == names
    assert sets[names[-1]] is engine
    shown: list[tuple[int, int]] = []
    bench = bench_decode(engine, QUESTIONS, CONFIG, 1, lambda done, total: shown.append((done, total)), sets)
    assert shown == [(done, 10) for done in range(1, 11)]
    assert list(bench.sets) == names
    assert bench.sets[names[-1]] == bench.comparisons
    for drafted_from, comparisons in bench.sets.items():
        for own, each in zip(bench.comparisons, comparisons, strict=True):
            assert each.is_identical
            assert each.plain is own.plain
            if drafted_from != names[-1]:
                used = {name for name, num in each.drafted.stats.drafted_by_source.items() if num}
                assert used <= set(drafted_from.split(" + "))
    of_pages = bench.sets["context + datastore"][0].drafted.stats
    assert of_pages.accepted_by_source["datastore"] > 0


def test_engines_of_a_set_keep_to_the_first_one_s_model_and_not_to_its_past(engine: Engine) -> None:
    first, last = SourceStock.of_engine(engine).engines(engine).values()
    assert last is engine
    assert first.decoder.target is engine.decoder.target
    assert first.decoder.cache is not engine.decoder.cache
    assert first.decoder.planner is not engine.decoder.planner


def test_json_and_the_table_tell_every_set_by_category(runner: CliRunner, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": each.prompt, "category": each.category} for each in QUESTIONS]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = ["bench", "decode", "--prompts", str(prompts), "-n", "8", "--rounds", "1", "--each-set"]
    result = runner.invoke(main, [*command, "--json"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    sets = {each["sources"]: each for each in fields["source_sets"]}
    assert list(sets) == ["context", "context + logits"]
    assert sets["context + logits"]["speedup"] == fields["speedup"]
    assert sets["context + logits"]["categories"] == fields["categories"]
    assert all(list(each["categories"]) == ["pages", "numbers"] and each["identical"] for each in sets.values())
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "by what is drafted from" in result.stdout
    assert "context + logits" in result.stdout
