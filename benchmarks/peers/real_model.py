"""A real model on several runtimes: whole answers to prompts of a file, plain and with each runtime's own drafting."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.measuring import Record, measure_answers
from benchmarks.peers.real_source import shape_of
from benchmarks.peers.runtimes import THREADS, Contender
from reader_edge.prompts import play_out, read_prompts
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig


def measure_real(
    contenders: Sequence[Contender], ours: Contender, source: Path, prompts: Path, num_tokens: int
) -> dict[str, Record]:
    """Contender -> its plain record, which holds the drafted one, which answers were equal, and their categories.

    ours: a contender of reader-edge, measured or not, whose package makes prompts of the file's lines and answers
    between the turns of conversations, so that every runtime gets the same.
    """
    shape = shape_of(source)
    engine = Engine.load(ours.converted(shape), EngineConfig(threads=THREADS, is_calibrated=False, is_probed=False))
    questions = play_out(engine, read_prompts(prompts), GenerationConfig(num_tokens, SamplingConfig()), is_raw=False)
    token_ids = [engine.encode_prompt(question.prompt) for question in questions]
    ends = engine.package.manifest.eos_token_ids
    del engine  # its memory is the workers' now
    records = measure_answers(contenders, shape, token_ids, num_tokens, ends)
    for record in records.values():
        record["categories"] = [question.category or "none" for question in questions]
    return records
