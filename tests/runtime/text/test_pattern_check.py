"""Regular expressions of a tokenizer.json that could take without end are refused, published ones are taken."""

from pathlib import Path

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.text.pattern_check import problem_of
from reader_edge_runtime.text.tokenizer import Tokenizer

DOUBLES = "can take a time that doubles with each character of a text"


@pytest.mark.parametrize(
    "text",
    [
        "(x+x+)+y",
        "(?:x+)+y",
        "((x)+)+y",
        "(a|a)*b",
        "(a|aa)+$",
        r"(?:\s+\s*)+[!]",
        r"(\w|\d)+!",
        r"(\p{L}+\p{M}*)*;",
        r"([^\s]+[a-z]*)+\.",
        "(?i:(k+K+)+)z",
        "(?i)(k+K+)+z",
        "(x{1,30}){1,30}y",
        "((a{1,2}){1,2}){1,2}!",
        "(x(?=y)?x?)+z",
        "((?=x)x+)+y",
        "(?=(x+x+)+y)z",
        "(?<!(x+x+)+y)z",
        r"(x+x+)+\b",
        r"(?:\R\R)+z",
        "a(?:b|[a-c][^x])+(?:[^y])+x|(?:bb|b)+x",
        "(?:a{3}|a{5})+b",
        "(x++)+y",
    ],
)
def test_what_goes_round_in_two_ways_is_refused(text: str) -> None:
    assert problem_of(text) == DOUBLES


@pytest.mark.parametrize(
    "text",
    [  # GPT-2, GPT-4 (with and without what is never given back), GPT-4o, Tekken, K-EXAONE, digits in threes, DeepSeek
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?",
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
        r"[\p{Lu}\p{Lo}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+|[[:alpha:]]+|[]x]+",
        r" ?[^(\s|[.,!?\u2026\u3002])]+",
        " {2,}",
        "▁",
    ],
)
def test_published_expressions_are_taken(text: str) -> None:
    assert problem_of(text) is None


@pytest.mark.parametrize(
    "text",
    [r"(?:\r?\n)+;", "(?:[a-z]|[0-9])+!", "(ab|cd)*e", "(foo|far)+;", "(?:a{3}){2}b", "(?: ?[a-z]+)+", r"\s*\s+!"],
)
def test_loops_of_one_way_are_taken(text: str) -> None:
    assert problem_of(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(a*)*b", "a loop over what may be nothing"),
        (r"(a)\1", "a reference"),
        ("(?x) a", "a group of a kind that is not followed"),
        ("(?~a)", "a group of a kind that is not followed"),
        ("[a", "a class that is not closed"),
        ("(a", "a bracket that is not closed"),
        ("a)", "a bracket too many"),
        ("\\", "a backslash at the end"),
        ("(" * 60 + "a" + ")" * 60, "deeper than is followed"),
        ("((a{64}){64}){64}", "longer than is followed"),
        ("(((){64}){64}){64}", "longer than is followed"),
        ("a{65}", "more than is followed"),
        ("(" + "|".join("a" * 400) + ")+b", "more ways than are followed"),
        ("(?:" + "|".join(f"{chr(97 + i)}b" for i in range(20)) + "|ax)+c", "a loop of more characters than are"),
    ],
)
def test_what_is_not_followed_is_refused(text: str, problem: str) -> None:
    assert (problem_of(text) or "").startswith(f"holds what no tokenizer needs ({problem}")


@pytest.mark.parametrize("text", ["a{0}b", "(x+x+){0}y"])
def test_what_occurs_no_times_is_no_loop(text: str) -> None:
    assert problem_of(text) is None


def test_a_loop_of_what_the_library_refuses_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert "('[[:nonsense:]]' is no expression)" in (problem_of("(?:[[:nonsense:]]+x)+y") or "")


def test_an_expression_without_end_is_refused() -> None:
    assert problem_of("x" * 20_000) == "has 20000 characters"


@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer", "decoder"])
def test_a_tokenizer_with_such_an_expression_is_refused_when_it_is_read(tmp_path: Path, place: str) -> None:
    fast = FastTokenizer(models.BPE())
    hostile = Regex("(x+x+)+y")
    if place == "pre_tokenizer":
        fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(hostile, "isolated")])
    elif place == "normalizer":
        fast.normalizer = normalizers.Sequence([normalizers.Replace(hostile, "")])
    else:
        fast.decoder = decoders.Replace(hostile, "")
    fast.save(str(tmp_path / "tokenizer.json"))
    told = r"has the regular expression '\(x\+x\+\)\+y', which can take .*: do not trust it, or give a model's"
    with pytest.raises(TokenizerError, match=told):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
