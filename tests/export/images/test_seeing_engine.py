"""Engines of exported models that see: transformers' own logits behind two images, and drafts that change nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
    Qwen3VLProcessor,
)

from models.train_shapes import TEMPLATE as SMOLVLM_TEMPLATE
from reader_edge.cli import main
from reader_edge.models.model_source import draft_notice
from reader_edge.verify import variants
from reader_edge.verify.certificate import read_certificate
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import Conversation, Engine, EngineConfig, GenerationConfig, GenerationResult
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.decoding import prompt_images
from reader_edge_runtime.decoding.prompt_images import DIGEST_BYTES, image_token_id
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME as SPECULATOR
from reader_edge_runtime.images.patches import prepare
from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Encodable
from tests.conftest import ROOT
from tests.export.images.seeing_models import EYES, KINDS, build_seeing_model
from tests.export.speculators.speculator_folders import write_mlp
from tests.fake_images import images_part
from tests.seeing_engine import MARK, add_tokens, picture, seeing_engine
from tests.tiny_models import change_config

GREEDY = GenerationConfig(max_tokens=24, ignores_eos=True, wants_logprobs=True, num_top_logprobs=4)
CAT, DOG = picture(1, 40, 24), picture(2, 16, 32)
MARKS = {  # what stands for a token of an image, and what a template writes
    "mistral3": ("[IMG]", "[IMG]"),
    "lfm2_vl": ("<image>", "<image>"),
    "gemma3": ("<image_soft_token>", "<start_of_image>"),
    "gemma4": ("<|image|>", "<|image|>"),
    **dict.fromkeys(("smolvlm", "idefics3"), ("<image>", "<image>")),
}
QWEN = ("<|image_pad|>", "<|image_pad|>")
BESIDE = (
    *("[IMG_BREAK]", "[IMG_END]", "<start_of_image>", "<end_of_image>", "<|image>", "<image|>", "<global-img>"),
    *("<fake_token_around_image>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
TEMPLATE = (
    "{%% for message in messages %%}{%% if message.content is string %%}{{ message.content }}"
    "{%% else %%}{%% for part in message.content %%}{%% if part.type == 'image' %%}<v>%s</v>{%% else %%}{{ part.text }}"
    "{%% endif %%}{%% endfor %%}{%% endif %%}{%% endfor %%}:"
)


def question(*images: Image.Image) -> Encodable:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "the cat"}]}]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The folder of a tiny model that sees, and its package, by model_type."""
    KernelLoader.shared().wait()  # until then nothing is drafted
    made: dict[str, tuple[Path, Path]] = {}

    def folders(name: str) -> tuple[Path, Path]:
        if name not in made:
            folder, out = tmp_path_factory.mktemp("seeing"), tmp_path_factory.mktemp("packages") / "package"
            build_seeing_model(name, folder)
            placeholder, mark = MARKS.get(name.partition("-")[0], QWEN)
            key = "image_token_index" if "image_token_index" in EYES[name].keys else "image_token_id"
            change_config(folder, **{key: add_tokens(folder / "tokenizer.json", (*BESIDE, placeholder))})
            own = SMOLVLM_TEMPLATE if mark == "<image>" else TEMPLATE % mark
            (folder / "chat_template.jinja").write_text(own)
            export_model(folder, out, ExportOptions("fp32", check="none"))
            made[name] = folder, out
        return made[name]

    return folders


def bits_of(result: GenerationResult) -> tuple[object, ...]:
    """Tokens, and what logits gave them to the bit."""
    return result.token_ids, result.logprobs


def test_another_question_about_an_image_goes_on_behind_it(exported: Callable[[str], tuple[Path, Path]]) -> None:
    """Of recurrent layers too, which can be cut back to places alone."""
    _, package = exported("qwen3_5")
    large = picture(3, 64, 64)
    parts = [{"type": "image", "image": large}, {"type": "text", "text": "a mat on the dog"}]
    with Engine.load(package, EngineConfig(is_calibrated=False, is_drafted=False)) as engine:
        engine.generate(question(large), GREEDY)
        found = engine.generate([{"role": "user", "content": parts}], GREEDY)
        apart = engine.generate([{"role": "user", "content": parts}], replace(GREEDY, cache_salt="another"))
    assert (found.stats.num_reused_tokens >= 64, apart.stats.num_reused_tokens) == (True, 0)
    assert bits_of(found) == bits_of(apart)


@pytest.mark.parametrize("name", KINDS)
def test_drafted_answers_about_images_are_plain_ones_beside_texts(
    name: str, exported: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    _, package = exported(name)
    prompts = [question(CAT), question(), question(DOG), question(CAT, DOG), question(DOG, CAT)]
    plain = Engine.load(package, EngineConfig(is_calibrated=False, is_drafted=False))
    expected = [bits_of(plain.generate(prompt, GREEDY)) for prompt in prompts]
    assert len(set(expected)) == len(prompts)
    plain.close()
    with Engine.load(package, EngineConfig(is_calibrated=False, prefix_cache=tmp_path)) as engine:
        assert engine.draft_permission.is_on
        results = [result for _ in range(2) for result in engine.generate_batch(prompts, GREEDY)]
        assert [bits_of(result) for result in results] == 2 * expected
        assert sum(result.stats.num_accepted_tokens for result in results) > 0
        engine.save_session(tmp_path / "kept")
    with Engine.load(package, EngineConfig(is_calibrated=False)) as engine:
        engine.load_session(tmp_path / "kept")
        assert [bits_of(engine.generate(prompt, GREEDY)) for prompt in prompts] == expected
    with Engine.load(package, EngineConfig(is_calibrated=False, prefix_cache=tmp_path, prefill_chunk=5)) as engine:
        assert [bits_of(result) for result in engine.generate_batch(prompts[::-1], GREEDY)] == expected[::-1]


@pytest.mark.long
def test_beside_images_a_speculator_is_silent_and_retrieval_drafts_the_plain_answer(
    exported: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    folder, _ = exported("mistral3")
    write_mlp(tmp_path / "speculator")
    options = ExportOptions("fp32", check="none", speculator=tmp_path / "speculator")
    export_model(folder, tmp_path / "package", options)
    prompts = [question(CAT), question(), question(DOG, CAT)]
    config = EngineConfig(is_calibrated=False)
    with Engine.load(tmp_path / "package", replace(config, is_drafted=False)) as plain:
        expected = [bits_of(plain.generate(prompt, GREEDY)) for prompt in prompts]
        assert draft_notice(plain) == ""
    with Engine.load(tmp_path / "package", config) as engine:
        assert "is silent beside images" in draft_notice(engine)
        results = [result for _ in range(2) for result in engine.generate_batch(prompts, GREEDY)]
    assert [bits_of(result) for result in results] == 2 * expected
    used = [result.stats.proposed_by_source[SPECULATOR] for result in results]
    assert [num > 0 for num in used] == 2 * [False, True, False]
    assert all(result.stats.num_accepted_tokens for result in results[3:])


@pytest.mark.parametrize("name", ["qwen3_5", pytest.param("smolvlm", marks=pytest.mark.long)])
def test_logits_behind_images_are_those_of_transformers(
    name: str, exported: Callable[[str], tuple[Path, Path]]
) -> None:
    """Of whole images, and of tiles."""
    folder, package = exported(name)
    logits: list[Float32Array] = []

    def keep(_: Request, row: Float32Array) -> None:
        logits.append(row.copy())

    with Engine.load(package, EngineConfig(is_calibrated=False)) as engine:
        engine.decoder.on_logits = keep
        answer, prompt = engine.generate(question(CAT, DOG), GREEDY), engine.encode_prompt(question(CAT, DOG))
    images = ModelPackage.open(package).manifest.images
    assert images is not None
    whole = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    text = torch.tensor([[*prompt, *answer.token_ids]])
    given = _pixels(images.rules)
    if name == "qwen3_5":
        given["mm_token_type_ids"] = (text == images.token_id).long()
    with torch.no_grad():
        wanted = whole(input_ids=text, use_cache=False, **given).logits[0, len(prompt) - 1 : -1]
    np.testing.assert_allclose(np.stack(logits), wanted.numpy(), atol=1e-5 * float(wanted.abs().max()) + 1e-5)


def _pixels(rules: ImageRules) -> dict[str, torch.Tensor]:
    """Tiles, or patches with rows and columns of them, as transformers takes them."""
    parts = [part for image in (CAT, DOG) for part in prepare(np.asarray(image), rules)]
    if "pixels" in parts[0].inputs:
        return {"pixel_values": torch.from_numpy(np.concatenate([part.inputs["pixels"] for part in parts])[None])}
    patches = np.concatenate([part.inputs["patches"] for part in parts])
    sides = [[1, *(rules.merge_size * side for side in part.grid)] for part in parts]
    return {"pixel_values": torch.from_numpy(patches), "image_grid_thw": torch.tensor(sides)}


@pytest.mark.long
def test_a_prompt_with_images_has_the_ids_of_transformers_own_processor(
    exported: Callable[[str], tuple[Path, Path]],
) -> None:
    """With the template of SmolVLM's makers, which knows contents of parts alone."""
    folder, package = exported("smolvlm")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    settings = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**settings), tokenizer, image_seq_len=4, chat_template=SMOLVLM_TEMPLATE
    )
    parts = [{"type": "image"}, {"type": "text", "text": "the cat"}, {"type": "image"}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "tides"}]}
    messages: list[Any] = [{"role": "user", "content": parts}, answer, {"role": "user", "content": parts[1:2]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    expected = processor(text=[text], images=[[CAT, DOG]])["input_ids"][0]
    with Engine.load(package, EngineConfig(is_calibrated=False)) as engine:
        images = engine.package.manifest.images
        assert images is not None
        prompt = Conversation([*messages[:2], {"role": "user", "content": "the cat"}], images=[CAT, DOG])
        found = engine.encode_prompt(prompt)
    assert found == expected
    assert found.count(images.token_id) == 4 * ((4 + 1) + (2 + 1))


VERIFY = ("verify", "--json", "--minutes", "0", "-n", "7")


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two, for a proof with few drafters."""
    monkeypatch.setattr(variants, "DRAFTERS", ("stress", variants.DEFAULT))
    path = tmp_path / "prompts.txt"
    path.write_text("the cat\ntides rise and fall\n")
    return path


@pytest.mark.long
@pytest.mark.parametrize("name", EYES)
def test_a_proof_has_answers_about_images_of_every_kind_of_eyes(
    name: str, exported: Callable[[str], tuple[Path, Path]], prompts: Path
) -> None:
    KernelLoader.shared().wait()  # until then nothing is drafted
    result = CliRunner().invoke(main, [*VERIFY, str(exported(name)[1]), "--prompts", str(prompts)])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert "is left out" not in result.stderr
    for run in fields["runs"]:
        if run["way"] in ("greedy by top ids", "greedy by logits", "sampled"):
            assert run["answers_with_images"] == 4
            assert run["tokens_compared"] == 7 * (2 + 4)
        else:  # some are given up before their first token, and texts stand behind images
            assert run["answers_with_images"] > 2
    assert fields["divergences"] == 0
    assert fields["logit_rows_bit_equal"] is fields["is_promise_kept"] is True
    seen = fields["categories"]["images"]
    assert seen["tokens_compared"] > 7 * 4
    assert seen["logit_rows"] == seen["logit_rows_equal"] > 0


@pytest.mark.long
def test_rows_of_another_image_are_caught_by_a_proof(
    exported: Callable[[str], tuple[Path, Path]], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one id stands for every image, and prefixes are found by ids."""
    monkeypatch.setattr(prompt_images, "image_token_id", lambda _, number: image_token_id(bytes(DIGEST_BYTES), number))
    result = CliRunner().invoke(main, [*VERIFY, str(exported("mistral3")[1]), "--prompts", str(prompts)])
    assert result.exit_code == 1
    fields = json.loads(result.stdout)
    assert fields["categories"]["images"]["divergences"] > 0
    assert fields["categories"]["none"]["divergences"] == 0


def test_a_certificate_samples_answers_to_texts(
    exported: Callable[[str], tuple[Path, Path]], prompts: Path, tmp_path: Path
) -> None:
    path, package = tmp_path / "certificate.json", str(exported("mistral3")[1])
    arguments = ["verify", package, "-n", "7", "--minutes", "1e-9", "--certificate", str(path), "--prompts"]
    for _ in range(2):  # written, then checked
        result = CliRunner().invoke(main, [*arguments, str(prompts)])
        assert result.exit_code == 0, result.output
    written = read_certificate(path)
    assert (written.prompts, len(written.sample)) == (6, 2)


def test_a_makers_template_shows_images_as_the_processor_of_transformers_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates of Qwen write an image in the same words from Qwen2-VL to Qwen 3.5, whose own is here."""
    template = (ROOT / "tests/data/templates/qwen3.5.jinja").read_text("utf-8")
    monkeypatch.setattr("tests.seeing_engine.TEMPLATE", template)
    engine, tower = seeing_engine(tmp_path)
    first, words, second = ({"type": "image", "image": CAT}, {"type": "text", "text": "Or"}, {"type": "image"})
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [first, words, second, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "The first."},
        {"role": "user", "content": [second]},
    ]
    read = engine.encode_prompt(Conversation(messages, images=[DOG, CAT]))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    rendered = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True, enable_thinking=True
    )
    rules = images_part().rules
    grids = [
        [1, *(rules.merge_size * side for side in prepare(np.asarray(image), rules)[0].grid)]
        for image in (CAT, DOG, CAT)
    ]
    own: Any = SimpleNamespace(image_processor=SimpleNamespace(merge_size=rules.merge_size), image_token=MARK)
    found = {"image_grid_thw": torch.tensor(grids)}
    texts = [Qwen3VLProcessor.replace_image_token(own, found, number) for number in range(3)]
    pieces = str(rendered).split(MARK)
    assert len(pieces) == 4
    whole = pieces[0] + "".join(text + piece for text, piece in zip(texts, pieces[1:], strict=True))
    assert read == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert read.count(tokenizer.convert_tokens_to_ids(MARK)) == sum(int(np.prod(grid)) for grid in grids) // 4
    assert tower.num_passes == 0
