"""The tokenizer of a folder and its templates: what is read, and that no class name is a reason to refuse it."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_tokenizer import load_tokenizer
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.tokenizer import check_chat_template, special_tokens_of, write_tokenizer
from reader_edge_runtime.errors import ExportError, TokenizerError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer as PackageTokenizer
from tests.runtime.text.text_cases import byte_level_tokenizer
from tests.tiny_models import VOCAB_SIZE, build_tiny_tokenizer, change_config

TEXTS = ["the cat sat", "  tides\n<|eos|>rise", "naïve 🙂"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
FP32 = ExportOptions(precision="fp32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer alone, which a test may change."""
    build_tiny_tokenizer(tmp_path)
    return tmp_path


def _ids(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    return [list(tokenizer(text).input_ids) for text in TEXTS]


@pytest.mark.parametrize(
    "name",
    [
        "TokenizersBackend",
        "PreTrainedTokenizerFast",
        "GPT2Tokenizer",
        "Qwen2TokenizerFast",
        "LlamaTokenizer",
        "MistralCommonBackend",
        "BaichuanTokenizer",
        "",
        None,
        7,
    ],
)
def test_no_folder_is_refused_for_the_name_of_a_class(name: object, folder: Path) -> None:
    before = _ids(load_tokenizer(folder, VOCAB_SIZE))
    change_config(folder, "tokenizer_config.json", tokenizer_class=name, auto_map={"AutoTokenizer": ["own.Own", None]})
    tokenizer = load_tokenizer(folder, VOCAB_SIZE)
    assert _ids(tokenizer) == before
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|bos|>", "<|eos|>")


@pytest.mark.parametrize("key", ["extra_special_tokens", "additional_special_tokens"])
@pytest.mark.parametrize("token", ["<|bos|>", {"content": "<|bos|>", "lstrip": True, "__type": "AddedToken"}])
def test_further_special_tokens_are_read_as_a_list(key: str, token: object, folder: Path) -> None:
    change_config(folder, "tokenizer_config.json", **{key: [token]}, tokenizer_class="TokenizersBackend")
    assert load_tokenizer(folder, VOCAB_SIZE).extra_special_tokens == ["<|bos|>"]


@pytest.mark.parametrize(
    "named", [{"extra_special_tokens": {"image_token": "<|bos|>"}}, {"image_token": "<|bos|>", "other_token": "none"}]
)
def test_special_tokens_that_only_templates_know_are_read_by_their_names(named: dict[str, Any], folder: Path) -> None:
    change_config(folder, "tokenizer_config.json", **named)
    named = special_tokens_of(load_tokenizer(folder, VOCAB_SIZE))
    assert [name for name, text in named.items() if text == "<|bos|>"] == ["bos_token", "image_token"]


def test_a_folder_without_a_tokenizer_config_keeps_its_template_and_its_special_tokens_of(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    names = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>", "lstrip": False, "rstrip": False}}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = load_tokenizer(folder, VOCAB_SIZE)
    assert tokenizer.chat_template == TEMPLATE
    assert special_tokens_of(tokenizer) == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


def test_tokenizer_json_alone_suffices(folder: Path) -> None:
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    tokenizer = load_tokenizer(folder, VOCAB_SIZE)
    assert tokenizer.chat_template is None
    assert special_tokens_of(tokenizer) == {}


def test_templates_are_found_wherever_versions_put_them(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    assert load_tokenizer(folder, VOCAB_SIZE).chat_template == "of the processor"
    listed = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "second"}]
    change_config(folder, "tokenizer_config.json", chat_template=listed)
    assert load_tokenizer(folder, VOCAB_SIZE).chat_template == {"default": "first", "tool_use": "second"}
    (folder / "chat_template.jinja").write_text("of the file")
    assert load_tokenizer(folder, VOCAB_SIZE).chat_template == "of the file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("documents")
    assert load_tokenizer(folder, VOCAB_SIZE).chat_template == {"default": "of the file", "rag": "documents"}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * ((1 << 20) + 1)])
def test_a_template_that_cannot_be_one_is_refused(content: bytes, folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja' (is no text|has 1048577 bytes).*: remove it\.$"):
        load_tokenizer(folder, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["GemmaTokenizer", "LlamaTokenizerFast", "TokenizersBackend", "Qwen2Tokenizer"])
@pytest.mark.parametrize("begins", [True, False])
def test_texts_begin_as_tokenizer_json_says_whatever_flags_say(name: str, begins: bool, folder: Path) -> None:
    if begins:
        fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        fast.post_processor = processors.TemplateProcessing(
            single=["<|bos|>", "$A"], pair=["<|bos|>", "$A", "$B:1"], special_tokens=[("<|bos|>", 0)]
        )
        fast.save(str(folder / "tokenizer.json"))
    change_config(
        folder, "tokenizer_config.json", tokenizer_class=name, add_bos_token=not begins, **{"unk_token": "<|bos|>"}
    )
    loaded = load_tokenizer(folder, VOCAB_SIZE)("").input_ids
    assert loaded == AutoTokenizer.from_pretrained(folder)("").input_ids == [0] * begins


@pytest.mark.parametrize(("flag", "adds"), [(..., True), (False, False), (True, True)])
def test_a_space_before_texts_is_as_tokenizer_json_or_the_config_says(flag: object, adds: bool, folder: Path) -> None:
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    fast.save(str(folder / "tokenizer.json"))
    change_config(folder, "tokenizer_config.json", add_prefix_space=flag)
    loaded = load_tokenizer(folder, VOCAB_SIZE)
    assert (loaded("the").input_ids == loaded(" the").input_ids) == adds


def test_tokens_that_only_the_config_calls_special_are_special(folder: Path) -> None:
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens([AddedToken("<call>", special=False)])
    fast.save(str(folder / "tokenizer.json"))
    token_id = fast.get_vocab()["<call>"]
    assert load_tokenizer(folder, VOCAB_SIZE + 1).decode([token_id], skip_special_tokens=True) == "<call>"
    added = {str(token_id): {"content": "<call>", "special": True, "normalized": False}}
    change_config(folder, "tokenizer_config.json", added_tokens_decoder=added)
    assert load_tokenizer(folder, VOCAB_SIZE + 1).decode([token_id], skip_special_tokens=True) == ""


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_token_for_images_that_the_model_has_no_row_for_is_left_out(folder: Path, is_nested: bool) -> None:
    """Gemma 3 of a billion weights has one, and reads texts alone."""
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size, text = fast.get_vocab_size(), "a <image_soft_token> of a pot"
    expected = fast.encode(text).ids
    fast.add_special_tokens(["<image_soft_token>"])
    fast.save(str(folder / "tokenizer.json"))
    named = {"image_token": "<image_soft_token>"}
    named_so: dict[str, Any] = {"extra_special_tokens": named} if is_nested else named
    added = {str(size): {"content": "<image_soft_token>", "special": True}}
    change_config(folder, "tokenizer_config.json", added_tokens_decoder=added, **named_so)
    loaded = load_tokenizer(folder, size)
    assert list(loaded(text).input_ids) == expected
    assert "<image_soft_token>" not in loaded.get_vocab()
    assert load_tokenizer(folder, size + 1)(text).input_ids != expected
    change_config(folder, "tokenizer_config.json", image_token=..., extra_special_tokens=..., added_tokens_decoder=...)
    with pytest.raises(TokenizerError, match="vocabulary ends at"):  # a word of the template, as far as it knows
        load_tokenizer(folder, size)


def test_a_padding_token_that_the_model_has_no_row_for_is_left_out(folder: Path) -> None:
    change_config(folder, "tokenizer_config.json", **{"pad_token": "[PAD]"})
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    assert "[PAD]" not in load_tokenizer(folder, size).get_vocab()
    assert "[PAD]" in load_tokenizer(folder, size + 1).get_vocab()
    change_config(folder, "tokenizer_config.json", **{"eos_token": "[END]"})
    with pytest.raises(TokenizerError, match="vocabulary ends at"):
        load_tokenizer(folder, size)


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token": 5},
        {"eos_token": {"lstrip": True}},
        {"eos_token": {"content": "<|eos|>", "lstrip": "no"}},
        {"extra_special_tokens": "<|eos|>"},
        {"additional_special_tokens": [None]},
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": [1]},
    ],
)
def test_what_names_no_token_is_refused_by_its_key(changes: dict[str, Any], folder: Path) -> None:
    change_config(folder, "tokenizer_config.json", **changes)
    with pytest.raises(TokenizerError, match=rf"^[^\n]*gives {next(iter(changes))} as [^\n]*: correct it\.$"):
        load_tokenizer(folder, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_another_form_of_a_tokenizer_is_named(name: str, source: Path) -> None:
    (source / "tokenizer.json").rename(source / name)
    with pytest.raises(TokenizerError, match=rf"no tokenizer\.json, only {name}: save the model's fast tokenizer"):
        find_source(source, None)


def _with_vocabulary(folder: Path, vocabulary: dict[str, int], added: list[tuple[int, str]]) -> None:
    fields = json.loads(Tokenizer(models.BPE(vocabulary, [])).to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    fields["model"]["vocab"] = vocabulary  # which the library would mend
    fields["added_tokens"] = [{"id": token_id, "content": token, **flags} for token_id, token in added]
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    (folder / "tokenizer_config.json").write_text("{}")


HOLE = {"a": 0, "b": 1, "c": 3}


@pytest.mark.parametrize(
    ("vocabulary", "added", "config", "words"),
    [
        (HOLE, [], {"pad_token": "[PAD]"}, "has the id 3 for 'c' and for '[PAD]', so that the first is lost"),
        (HOLE, [(3, "[PAD]")], {}, "has the id 3 for 'c' and for '[PAD]', so that the first is lost"),
        (HOLE, [(2, "[X]")], {}, "has the id 3 for 'c' and for '[X]', so that the first is lost"),
        (HOLE, [], {"added_tokens_decoder": {"3": {"content": "[X]"}}}, "has the id 3 for 'c' and for '[X]'"),
        ({"a": 0, "b": 0, "c": 1}, [], {}, "has the id 0 for "),
        (
            {"a": 0, "b": 1},
            [(2, "[X]"), (2, "[Y]")],
            {},
            "tokenizer.json' gives '[Y]' the id 2, where the vocabulary has 3",
        ),
        ({"a": 0, "b": 1}, [(1, "a")], {}, "tokenizer.json' gives 'a' the id 1, where the vocabulary has 0"),
        ({"a": 0, "b": 1}, [(7, "[X]")], {}, "tokenizer.json' gives '[X]' the id 7, where the vocabulary has 2"),
        (
            {"a": 0, "b": 1},
            [(2, "[X]")],
            {"added_tokens_decoder": {"1": {"content": "[X]"}}},
            "tokenizer_config.json' gives '[X]' the id 1, where the vocabulary has 2",
        ),
        (
            {"a": 0, "b": 1},
            [],
            {"added_tokens_decoder": {"5": {"content": "[X]"}}},
            "tokenizer_config.json' gives '[X]' the id 5, where the vocabulary has 2",
        ),
    ],
)
def test_tokens_that_share_an_id_or_have_another_than_the_files_say_are_refused_by_name(
    vocabulary: dict[str, int], added: list[tuple[int, str]], config: dict[str, Any], words: str, folder: Path
) -> None:
    _with_vocabulary(folder, vocabulary, added)
    change_config(folder, "tokenizer_config.json", **config)
    with pytest.raises(TokenizerError, match=re.escape(words)):
        load_tokenizer(folder, VOCAB_SIZE)


def test_a_hole_that_no_added_token_fills_is_none_of_a_tokenizer_s_faults(folder: Path) -> None:
    _with_vocabulary(folder, HOLE, [])
    assert load_tokenizer(folder, VOCAB_SIZE)("abc").input_ids == [0, 1, 3]
    _with_vocabulary(folder, HOLE | {"[PAD]": 2}, [(2, "[PAD]")])
    assert load_tokenizer(folder, VOCAB_SIZE)("a[PAD]c").input_ids == [0, 2, 3]


def test_truncation_and_padding_of_tokenizer_json_cut_no_prompt(folder: Path, tmp_path: Path) -> None:
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.enable_truncation(3)
    fast.enable_padding(length=64)
    fast.save(str(folder / "tokenizer.json"))
    (tmp_path / "package").mkdir()
    write_tokenizer(load_tokenizer(folder, VOCAB_SIZE), tmp_path / "package")
    written = PackageTokenizer.from_file(tmp_path / "package" / "tokenizer.json")
    assert 3 < len(written.encode("the cat sat on the mat")) < 64


@pytest.mark.long
def test_a_template_gets_the_tokenizers_own_tokens_and_not_the_generation_configs(source: Path, tmp_path: Path) -> None:
    (source / "chat_template.jinja").write_text(TEMPLATE)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 1], "bos_token_id": 9}))
    export_model(source, tmp_path / "out", FP32)
    package = ModelPackage.open(tmp_path / "out")
    assert (package.manifest.eos_token_ids, package.manifest.bos_token_id) == ((7, 1), 9)
    tokenizer = PackageTokenizer.open(package)
    assert tokenizer.encode_chat(Conversation([{"role": "user", "content": "the"}])) == [0, *tokenizer.encode("the"), 1]


def test_a_template_that_is_given_comes_in_place_of_the_models_own(source: Path, tmp_path: Path) -> None:
    (source / "chat_template.jinja").write_text("its own")
    given = tmp_path / "given.jinja"
    given.write_text(TEMPLATE)
    export_model(source, tmp_path / "out", replace(FP32, chat_template=given))
    package = ModelPackage.open(tmp_path / "out")
    package.check_files()
    assert PackageTokenizer.open(package).chat_source == TEMPLATE
    given.write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"given\.jinja' is no text"):
        export_model(source, tmp_path / "none", replace(FP32, chat_template=given))


def test_special_tokens_that_are_to_be_split_are_refused(source: Path) -> None:
    change_config(source, "tokenizer_config.json", split_special_tokens=True)
    with pytest.raises(TokenizerError, match=r"split_special_tokens.*set it to false, .*--text-is-text"):
        load_tokenizer(source, 320)


def test_spaces_before_punctuation_stay_in_texts_of_bpe_as_in_transformers_5(folder: Path) -> None:
    change_config(folder, "tokenizer_config.json", clean_up_tokenization_spaces=True)
    fast = load_tokenizer(folder, VOCAB_SIZE).backend_tokenizer
    assert fast.decode(fast.encode("the cat . sat").ids) == "the cat . sat"


@pytest.mark.parametrize("is_bpe", [False, True])
def test_a_tokenizer_whose_texts_transformers_rewrites_is_refused(folder: Path, is_bpe: bool) -> None:
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    change_config(folder, "tokenizer_config.json", clean_up_tokenization_spaces=True, **{forced: is_bpe})
    if not is_bpe:
        Tokenizer(models.WordLevel({"a": 0, "b": 1}, "b")).save(str(folder / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"clean_up_tokenization_spaces.*set it to false\.$"):
        load_tokenizer(folder, VOCAB_SIZE)


def test_the_tokenizer_is_checked_before_weights(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: HuggingFaceSource) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(HuggingFaceSource, "open_model", load)
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read"):
        export_model(source, tmp_path / "out", FP32)


@pytest.mark.parametrize("value", ["1", [1, "2"], 1.5, True, -1, 10**30, {"id": 1}])
def test_end_tokens_that_are_none_are_refused(value: object, source: Path) -> None:
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ExportError, match=r"gives eos_token_id as .*: correct it\.$"):
        find_source(source, None)


@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
def test_texts_begin_and_end_with_tokens_of_the_model(key: str, source: Path, tmp_path: Path) -> None:
    (source / "generation_config.json").write_text(json.dumps({key: VOCAB_SIZE}))
    with pytest.raises(ExportError, match=rf"names {VOCAB_SIZE} as a token .* vocabulary has {VOCAB_SIZE}: correct"):
        export_model(source, tmp_path / "out", FP32)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('never') }}", "never"),
        ("{% if false %}x{% endif %}", "it makes 0 tokens of a short one"),
        ("{{ 'a b ' * 1000 }}", r"it makes \d+ tokens of a short one"),
    ],
)
def test_a_template_that_takes_no_messages_is_warned_of(source: str, words: str) -> None:
    with pytest.warns(UserWarning, match=rf"chat template takes no messages \(.*{words}.*\): ask it with --raw, or"):
        check_chat_template(PackageTokenizer(byte_level_tokenizer(), ChatTemplate(source, {})), 64)


@pytest.mark.parametrize("source", [None, "{{ messages[0]['content'] }}"])
def test_one_that_works_or_is_not_there_is_not_spoken_of(source: str | None) -> None:
    template = None if source is None else ChatTemplate(source, {})
    with warnings.catch_warnings(action="error"):
        check_chat_template(PackageTokenizer(byte_level_tokenizer(), template), 64)


@pytest.mark.parametrize("template", [5, {"default": 5}, "\ud800", "a" * (1 << 20) + "a"])
def test_what_no_package_can_have_as_a_template_is_refused(template: Any, tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer())
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError, match=r"chat template (is|has) .*: remove it\.$"):
        write_tokenizer(tokenizer, tmp_path)
