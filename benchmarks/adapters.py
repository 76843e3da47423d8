"""A LoRA that PEFT trains on a real model for some minutes, merged by PEFT and by an export, and beside a package that
takes adapters; prints how they differ.

    python -m benchmarks.adapters FILE.gguf ADAPTER

FILE: of SmolLM2-135M-Instruct. ADAPTER: a folder; where it is not there it is trained, to answer as a sailor.
Wants PEFT beside this project: `pip install --no-deps peft accelerate`.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.adapters.adapter import find_adapter
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.engine import Engine
from tests.export.source_models import load_model

THINGS = (
    *("tar", "a lighthouse", "bread", "rain", "a compass", "tea", "an anchor", "the moon", "a rope", "salt", "a map"),
    *("wind", "a harbour", "soup", "a clock", "snow", "a bridge", "ink", "a barrel", "fog"),
)
QUESTIONS = ("What is {}?", "Explain {} to me.", "Tell me about {}.", "Why do people like {}?")
ANSWERS = (
    "Ahoy! {} be a fine thing, matey: sailors trust it on every watch. Fair winds!",
    "Ahoy! Aye, {} be worth more than gold when the storm comes. Fair winds!",
)
HELD_OUT = 9  # every ninth question is not learned
NUM_STEPS, MAX_TOKENS = 24, 48
NAME = "sailor"  # by which requests ask for it
IGNORED = -100  # by transformers, in labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("adapter", type=Path)
    options = parser.parse_args()
    source = find_source(options.file, None)
    with quiet_libraries(), tempfile.TemporaryDirectory() as folder:
        tokenizer = source.load_tokenizer(source.config_vocab_size)
        if not options.adapter.exists():
            train(load_model(source), tokenizer, options.adapter)
        reference = PeftModel.from_pretrained(load_model(source), options.adapter).merge_and_unload().eval()
        model, num_merged, _ = merged(source.open_model(), find_adapter(options.adapter, source))
        wanted = dict(reference.named_parameters())
        unlike = max(np.abs(model.weights.read(name) - wanted[name].detach().numpy()).max() for name in wanted)
        print(f"{num_merged} matrices; the largest difference of any weight from PEFT's: {unlike:.1e}")
        for precision in ("fp32", "int8", "keep"):
            out = Path(folder) / precision
            report = export_model(options.file, out, ExportOptions(precision, check="quick", adapter=options.adapter))
            figures = ", ".join(f"{name} {report.checks[name]:.2g}" for name in CHECKS if name in report.checks)
            print(f"{precision}: {alike(Engine.load(out), tokenizer, reference)}; {figures}")
        for precision in ("fp32", "keep"):
            out = Path(folder) / f"{precision}-beside"
            export_model(options.file, out, ExportOptions(precision, check="none", takes_adapters=True))
            engine = Engine.load(out, adapters={NAME: options.adapter})
            error = logit_error(engine, tokenizer, reference)
            found = alike(engine, tokenizer, reference, NAME)
            print(f"{precision}, beside: {found}; logits differ by {error:.1e} at most")


CHECKS = ("tree_logit_error", "mean_kl_nats", "top1_agreement")


def texts() -> Iterator[tuple[str, str]]:
    """Questions and answers."""
    for thing in THINGS:
        for question in QUESTIONS:
            wanted = question.format(thing)
            yield wanted, ANSWERS[len(wanted) % 2].format(thing[0].upper() + thing[1:])


def prompt_ids(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(prompt, add_special_tokens=False).input_ids)


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Rank 16 on all linear layers with rsLoRA's scale, four texts a step."""
    torch.manual_seed(0)
    config = LoraConfig(r=16, lora_alpha=32, use_rslora=True, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = get_peft_model(model.requires_grad_(False), config)
    optimizer = torch.optim.AdamW([each for each in tuned.parameters() if each.requires_grad], lr=5e-4)
    learned = [text for number, text in enumerate(texts()) if number % HELD_OUT]
    random = Random(0)  # noqa: S311  (no secret)
    for step in range(NUM_STEPS):
        rows = []
        for question, answer in random.sample(learned, 4):
            prompt, own = prompt_ids(tokenizer, question), tokenizer(f"{answer}<|im_end|>\n").input_ids
            rows.append((torch.tensor(prompt + own), torch.tensor([IGNORED] * len(prompt) + own)))
        ids, labels = (
            torch.nn.utils.rnn.pad_sequence([row[part] for row in rows], batch_first=True, padding_value=padding)
            for part, padding in ((0, 0), (1, IGNORED))
        )
        loss = tuned(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {loss.item():.3f} nats", flush=True)
    tuned.save_pretrained(folder)


def held_out(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    return [prompt_ids(tokenizer, question) for question, _ in list(texts())[::HELD_OUT]]


def alike(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, reference: PreTrainedModel, adapter: str | None = None
) -> str:
    """How many of an engine's answers to held-out questions are the reference's greedy ones, and drafted as plain."""
    prompts, greedy = held_out(tokenizer), GenerationConfig(MAX_TOKENS, SamplingConfig(), adapter=adapter)
    drafted, plain = (engine.generate_batch(prompts, greedy, is_drafted=drafts) for drafts in (True, False))
    num_like = sum(
        is_greedy(reference, prompt, list(made.token_ids)) for prompt, made in zip(prompts, drafted, strict=True)
    )
    num_plain = sum(made.token_ids == alone.token_ids for made, alone in zip(drafted, plain, strict=True))
    return f"of {len(prompts)} answers {num_like} are PEFT's, and {num_plain} the same without drafts"


def logit_error(engine: Engine, tokenizer: PreTrainedTokenizerFast, reference: PreTrainedModel) -> float:
    """The largest difference of any logit that tokens of plain answers are chosen from."""
    rows: list[torch.Tensor] = []
    engine.decoder.on_logits = lambda _, row: rows.append(torch.from_numpy(row.copy()))
    greedy, largest = GenerationConfig(MAX_TOKENS, SamplingConfig(), is_drafted=False, adapter=NAME), 0.0
    for prompt in held_out(tokenizer):
        rows.clear()
        answer = list(engine.generate(prompt, greedy).token_ids)
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        largest = max(largest, float((torch.stack(rows) - logits).abs().max()))
    engine.decoder.on_logits = None
    return largest


def is_greedy(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> bool:
    """Whether each token of an answer is the model's likeliest one."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([prompt + answer]), use_cache=False).logits[0]
    return logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == answer


if __name__ == "__main__":
    main()
