"""The names of models: what they mean, and the errors of those that mean nothing."""

import pytest

from reader_edge.models.catalogue import CATALOGUE, Origin, canonical, find_origin, is_model_name, similar_name
from reader_edge_runtime.errors import CatalogueError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("smollm2:135m:latest", "smollm2:135m"),
        ("library/smollm2:135m", "smollm2:135m"),
        ("ollama.com/library/smollm2", "smollm2"),
        ("smollm2-135m", "smollm2:135m"),
        ("smollm2:135m ", "smollm2:135m"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B"),
        ("hf.co/owner/name-GGUF:Q4_K_M", "owner/name-GGUF"),
        ("owner/name:latest", "owner/name"),
        ("/a/b", None),
        ("sphinx", None),
    ],
)
def test_a_name_as_others_spell_it_is_recognised(name: str, meant: str | None) -> None:
    assert not is_model_name(name)
    assert similar_name(name) == meant


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_name_of_the_catalogue_means_one_model_of_the_hub(name: str) -> None:
    assert is_model_name(name)
    assert canonical(name) == name
    assert find_origin(find_origin(name).hub_id) == Origin(CATALOGUE[name].hub_id)


def test_no_two_names_mean_the_same() -> None:
    assert len({origin.hub_id for origin in CATALOGUE.values()}) == len(CATALOGUE)


def test_large_letters_are_small_ones() -> None:
    assert canonical("SmolLM2:135M") == "smollm2:135m"
    assert find_origin("SmolLM2:135M") == CATALOGUE["smollm2:135m"]
    assert canonical("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_file_of_a_repository_is_named_by_its_path() -> None:
    assert find_origin("owner/name/model.Q8_0.gguf") == Origin("owner/name", "model.Q8_0.gguf")


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../..", "a/..", "owner/name/..", "owner/../x.gguf", "/a/b", "a\\b", "C:x", "demo", "a/b/c"]
)
def test_paths_are_no_names(text: str) -> None:
    assert not is_model_name(text)


def test_a_name_without_its_size_is_answered_with_the_sizes() -> None:
    assert is_model_name("gemma3")
    for name in ("gemma3", "gemma3:70b"):
        with pytest.raises(CatalogueError, match=rf"no model '{name}': there is gemma3:270m, gemma3:1b;"):
            find_origin(name)


def test_an_unknown_name_is_answered_with_where_the_known_ones_are() -> None:
    with pytest.raises(CatalogueError, match=r"no model 'sphinx:1b': `reader-edge pull --help` names them"):
        find_origin("sphinx:1b")
