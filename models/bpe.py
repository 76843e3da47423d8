"""The demo model's byte-level BPE tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns merges from ``texts``.

    All 256 bytes are in the alphabet and nothing is normalised, so that decoding gives back
    exactly the text that was encoded, whatever it is.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.token_to_id(END_OF_TEXT) != END_OF_TEXT_ID:
        raise ValueError(f"{END_OF_TEXT} did not get id {END_OF_TEXT_ID}")
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"learned {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes ``tokenizer.json`` and the configuration that AutoTokenizer loads.

    ``clean_up_tokenization_spaces`` is off: it rewrites spaces before punctuation on decoding.
    The input names leave out ``token_type_ids``, which Llama does not take.
    """
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
