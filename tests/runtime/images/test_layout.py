import msgspec
import pytest

from reader_edge_runtime.errors import ImageError
from reader_edge_runtime.images.layout import lay_out
from reader_edge_runtime.package.images import ImageRules
from tests.runtime.images.published_rules import RULES


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("qwen2_5_vl", (84, 56), "<|image_pad|>" * 6),
        ("gemma3", (9, 9), f"\n\n<start_of_image>{'<image_soft_token>' * 256}<end_of_image>\n\n"),
        ("mistral3", (56, 28), "[IMG][IMG][IMG_END]"),
        ("mistral3", (28, 56), "[IMG][IMG_BREAK][IMG][IMG_END]"),
    ],
)
def test_text_that_stands_for_an_image(name: str, size: tuple[int, int], text: str) -> None:
    assert lay_out(*size, RULES[name]).text == text


def test_tiles_are_named_by_row_and_column() -> None:
    lfm2, smolvlm = lay_out(900, 900, RULES["lfm2_vl"]), lay_out(1000, 400, RULES["smolvlm"])
    marks = "<|img_row_1_col_1|><|img_row_1_col_2|><|img_row_2_col_1|><|img_row_2_col_2|><|img_thumbnail|>"
    assert lfm2.text.replace("<image>", "") == f"<|image_start|>{marks}<|image_end|>"
    fake = "<fake_token_around_image>"
    rows = [[f"{fake}<row_{row}_col_{column}>" for column in (1, 2, 3, 4)] for row in (1, 2)]
    tiles = "".join("".join(row) + "\n" for row in rows)
    assert smolvlm.text.replace("<image>", "") == f"{tiles}\n{fake}<global-img>{fake}"


@pytest.mark.parametrize(("name", "most"), [("qwen3_5", 200), ("qwen2_5_vl", 200), ("mistral3", 1540)])
def test_a_line_is_refused_where_its_model_takes_none(name: str, most: int) -> None:
    for width, height in ((16384, 1), (1, 16384), (most * 2 + 1, 2)):
        sentence = f"'a.png' has {width} x {height} pixels, too narrow for this model: crop it to at most {most} times"
        with pytest.raises(ImageError, match=f"^{sentence} as long as wide\\.$"):
            lay_out(width, height, RULES[name], "'a.png'")
    assert all(min(size) > 0 for size in lay_out(most * 7, 7, RULES[name]).sizes)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen2_5_vl", "mistral3", "gemma4"])
def test_images_that_are_seen_whole_have_no_more_tokens_than_allowed(name: str) -> None:
    rules = RULES[name]
    assert rules.within(1 << 20) == rules
    for most in (256, 1024):
        fewer = rules.within(most)
        for width, height in ((16384, 100), (3000, 4000), (300, 200), (56, 56), (7000, 7000)):
            assert lay_out(width, height, fewer).num_tokens <= most
            if name != "mistral3" and lay_out(width, height, rules).num_tokens <= most // 2:
                assert lay_out(width, height, fewer) == lay_out(width, height, rules)
    for tiled in ("lfm2_vl", "smolvlm", "gemma3"):
        assert RULES[tiled].within(256) is RULES[tiled]


def test_gemma4_gives_a_line_its_most_tokens() -> None:
    assert lay_out(16384, 1, RULES["gemma4"]).parts[0].grid == (1, 280)
    assert lay_out(1, 16384, RULES["gemma4"]).parts[0].grid == (280, 1)


@pytest.mark.parametrize("name", RULES)
def test_no_size_makes_more_than_a_bounded_number_of_tokens(name: str) -> None:
    sides = (1, 2, 13, 27, 28, 333, 1000, 4096, 16384)
    for width in sides:
        for height in sides:
            try:
                layout = lay_out(width, height, RULES[name])
            except ImageError:
                continue
            assert 0 < layout.num_tokens <= 16384 + 256
            assert all(min(size) > 0 for size in layout.sizes)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("qwen3_5", {"patch_size": 1, "merge_size": 1}),
        ("gemma4", {"patch_size": 1, "merge_size": 1, "max_pixels": 1 << 26}),
        ("mistral3", {"patch_size": 1, "merge_size": 1, "longest_edge": 4096}),
        ("qwen3_5", {"patch_size": 64, "merge_size": 64, "min_pixels": 1 << 26, "max_pixels": 1 << 26}),
    ],
)
def test_rules_of_a_package_cannot_ask_for_more_than_bounds_allow(name: str, changed: dict[str, object]) -> None:
    rules = msgspec.convert({**msgspec.to_builtins(RULES[name]), **changed}, ImageRules)
    with pytest.raises(ImageError, match="would have more than 67108864 pixels or 1048576 tokens for this model"):
        lay_out(3001, 3999, rules)


@pytest.mark.parametrize("name", RULES)
def test_rules_come_back_from_a_manifest(name: str) -> None:
    assert msgspec.json.decode(msgspec.json.encode(RULES[name]), type=ImageRules) == RULES[name]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("qwen3_5", {"position_side": 0}),
        ("qwen3_5", {"tile_size": 512}),
        ("qwen3_5", {"max_pixels": 1000}),
        ("qwen3_5", {"mean": [0.5]}),
        ("qwen3_5", {"std": [0.5, 0.5, 0]}),
        ("qwen3_5", {"filter": "nearest"}),
        ("qwen3_5", {"family": "llava"}),
        ("qwen3_5", {"patch_size": 0}),
        ("qwen3_5", {"colour": 1}),
        ("qwen2_5_vl", {"window_size": 100}),
        ("gemma3", {"tile_size": 900}),
        ("smolvlm", {"tile_size": 64}),
        ("smolvlm", {"tile_size": 8}),
        ("lfm2_vl", {"min_tiles": 11}),
        ("lfm2_vl", {"tile_size": 500}),
        ("lfm2_vl", {"tile_size": 4096, "max_tiles": 256}),
        ("lfm2_vl", {"position_side": 1024}),
        ("qwen3_5", {"std": [0.5, 0.5, 1e-60]}),
    ],
)
def test_rules_that_cannot_be_are_refused(name: str, changed: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(RULES[name]), **changed}, ImageRules)
