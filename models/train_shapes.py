"""Trains a small SmolVLM on pictures of drawn shapes, so that proofs on a model that sees meet accepted drafts.

    python -m models.train_shapes OUT --work WORK [--steps 1500] [--rows 16]

It answers questions about the colour, form, place and number of shapes (`models.shapes`), and sees tiles as SmolVLM
does: four and the whole in small. Everything random follows from ``SEED`` and the number of a step, so an interrupted
run goes on from ``WORK/state.pt``. It takes one core, and about ten minutes of it; nothing is kept in the repository.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from models.bpe import train_tokenizer
from models.shapes import DESCRIBE, QUESTIONS, SIDE, Picture, draw
from reader_edge_runtime.images.layout import lay_out
from reader_edge_runtime.images.resize import resize
from reader_edge_runtime.package.images import ImageRules

SEED = 20261129
MAX_POSITIONS = 1024
VOCAB_SIZE = 352  # without what is special
NUM_TEXTS = 2000  # from which the tokenizer learns
PEAK_RATE = 2e-3
LOG_EVERY = 20
SAVE_EVERY = 100
NUM_HELD_OUT = 256  # pictures
TILE = SIDE // 2
RULES = ImageRules(
    "smolvlm", 8, 2, "lanczos", (0.5,) * 3, (0.5,) * 3, longest_edge=SIDE, tile_size=TILE, cuts_tiles=True
)
END = "<end_of_utterance>"
SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<global-img>", RULES.placeholder, END),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
TEMPLATE = (  # as SmolVLM's own
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
Tokens = list[tuple[list[int], bool]]  # of a conversation's pieces, each with whether it is an answer


def make_tokenizer() -> Tokenizer:
    """Of bytes, with merges from questions and answers, and the marks of tiles."""
    random = np.random.default_rng(SEED)
    texts = [" ".join((question, draw(random).answer(question))) for _ in range(NUM_TEXTS) for question in QUESTIONS]
    tokenizer = train_tokenizer(["User: Assistant:", *texts], VOCAB_SIZE)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def new_model(tokenizer: Tokenizer) -> SmolVLMForConditionalGeneration:
    """A fresh model of 1.3 million parameters."""
    torch.manual_seed(SEED)
    vision = {
        **{"hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 4, "num_attention_heads": 3},
        **{"image_size": TILE, "patch_size": RULES.patch_size},
    }
    text = {
        **{"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-5},
        **{"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_POSITIONS},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "pad_token_id": None},
        **{"bos_token_id": None, "eos_token_id": _id(tokenizer, END)},
    }
    config = SmolVLMConfig(
        vision_config=vision,
        text_config=text,
        scale_factor=RULES.merge_size,
        image_token_id=_id(tokenizer, RULES.placeholder),
        tie_word_embeddings=False,
    )
    return SmolVLMForConditionalGeneration(config)


def _id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return int(token_id)


def conversation(picture: Picture, questions: list[str], tokenizer: Tokenizer) -> Tokens:
    """As the template renders it, in pieces that are tokenised alike together and apart."""
    head = f"<|im_start|>User:{lay_out(SIDE, SIDE, RULES).text}"
    pieces: Tokens = []
    for question in questions:
        prompt = f"{head}{question}{END}\nAssistant:"
        pieces.append((tokenizer.encode(prompt).ids, False))
        pieces.append((tokenizer.encode(f" {picture.answer(question)}{END}").ids, True))
        head = "\nUser: "
    return pieces


def tiles_of(pictures: list[Picture]) -> torch.Tensor:
    """What a tower takes of them, float32 (B, 5, 3, TILE, TILE), as `reader_edge_runtime.images.patches` makes it."""
    beside = np.concatenate([picture.pixels for picture in pictures], 2)  # channels that one resize takes
    cuts = [beside[top : top + TILE, left : left + TILE] for top in (0, TILE) for left in (0, TILE)]
    parts = np.stack([*cuts, resize(beside, TILE, TILE, RULES.filter)])
    parts = parts.reshape(5, TILE, TILE, len(pictures), 3).transpose(3, 0, 4, 1, 2)
    return torch.from_numpy((np.ascontiguousarray(parts, np.float32) - 127.5) / 127.5)


def batch_of(seed: list[int], tokenizer: Tokenizer, num_rows: int) -> dict[str, torch.Tensor]:
    """Conversations of two questions; only answers count for the loss.

    In every other batch each has a description, so that rows of one are about as long.
    """
    random = np.random.default_rng(seed)
    is_described = random.random() < 0.5
    pictures, rows = [draw(random) for _ in range(num_rows)], []
    for picture in pictures:
        questions = [str(each) for each in random.choice(QUESTIONS[1:], 2, replace=False)]
        if is_described:
            questions[random.integers(2)] = DESCRIBE
        rows.append(conversation(picture, questions, tokenizer))
    length = max(sum(len(ids) for ids, _ in row) for row in rows)
    ids, labels = torch.zeros(num_rows, length, dtype=torch.int64), torch.full((num_rows, length), -100)
    for number, row in enumerate(rows):
        start = 0
        for piece, is_answer in row:
            end = start + len(piece)
            ids[number, start:end] = torch.tensor(piece)
            if is_answer:
                labels[number, start:end] = ids[number, start:end]
            start = end
    return {"input_ids": ids, "labels": labels, "pixel_values": tiles_of(pictures)}


def train(model: SmolVLMForConditionalGeneration, tokenizer: Tokenizer, steps: int, rows: int, work: Path) -> None:
    """AdamW, the rate rising for a twentieth of the steps and falling to nothing; the state goes to ``work``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    state_file, first = work / "state.pt", 0
    if state_file.exists():
        state = torch.load(state_file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    warmup, started, recent = max(1, steps // 20), time.monotonic(), list[float]()
    for step in range(first, steps):
        rate = PEAK_RATE * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(**batch_of([SEED, step], tokenizer, rows), use_cache=False).loss
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        done = step + 1
        if done % LOG_EVERY == 0 or done == steps:
            speed = (done - first) * rows / (time.monotonic() - started)
            print(f"{done}/{steps} loss {sum(recent) / len(recent):.4f} {speed:.1f} conversations/s", flush=True)
            recent.clear()
        if done % SAVE_EVERY == 0 or done == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            torch.save(state, state_file.with_suffix(".partial"))
            state_file.with_suffix(".partial").rename(state_file)


@torch.no_grad()
def evaluate(model: SmolVLMForConditionalGeneration, tokenizer: Tokenizer) -> dict[str, float]:
    """Of answers about pictures that were not trained on, the share that greedy decoding gives word for word.

    Where each token of an answer is the likeliest after those before it, greedy decoding gives that answer.
    """
    random = np.random.default_rng([SEED, 0, 1])
    pictures = [draw(random) for _ in range(NUM_HELD_OUT)]
    right = dict.fromkeys(QUESTIONS, 0)
    for picture in pictures:
        for question in QUESTIONS:
            (prompt, _), (answer, _) = conversation(picture, [question], tokenizer)
            ids = torch.tensor([[*prompt, *answer]])
            logits = model(input_ids=ids, pixel_values=tiles_of([picture]), use_cache=False).logits[0]
            likeliest = logits[len(prompt) - 1 : -1].argmax(-1)
            right[question] += int(likeliest.tolist() == answer)
    return {question: count / NUM_HELD_OUT for question, count in right.items()}


def save(model: SmolVLMForConditionalGeneration, tokenizer: Tokenizer, folder: Path) -> None:
    """A folder as SmolVLM's: weights in fp32, tokenizer, chat template, and how pixels are read."""
    model.generation_config = GenerationConfig(eos_token_id=_id(tokenizer, END))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    processor: dict[str, Any] = {
        **{"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True, "resample": 1},
        **{"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": TILE}},
        **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", "utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="state of the run")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=16, help="conversations a step")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = new_model(tokenizer)
    train(model, tokenizer, arguments.steps, arguments.rows, arguments.work)
    save(model, tokenizer, arguments.out)
    for question, share in evaluate(model, tokenizer).items():
        print(f"{share:.3f} {question}")


if __name__ == "__main__":
    main()
