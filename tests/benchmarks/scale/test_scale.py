"""A datastore in shards: built by subject, dropped from memory, routed to; and boxes behind one address."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.__main__ import firsts, latencies, recalls, warming_up
from benchmarks.scale.lookups import Question, Shards, cold, questions
from benchmarks.scale.routing import Router, recall
from benchmarks.scale.shards import build_shard, folder_documents, longer, save_arrays
from reader_edge.model_source import load_tokenizer
from tests.conftest import ROOT

SUBJECTS = {"code": ROOT / "benchmarks", "words": ROOT / "docs"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    tokenizer = load_tokenizer(str(demo_folder))
    held_out, profiles = {}, {}
    for name, source in SUBJECTS.items():
        documents = list(folder_documents(source, tokenizer, 20_000))
        held_out[name] = np.concatenate(documents[:2])
        profiles[name] = build_shard(folder / f"{name}.ds", documents[2:], 30_000, tokenizer)
    save_arrays(folder / "held-out.npz", held_out)
    save_arrays(folder / "profiles.npz", profiles)
    return folder


def test_a_text_is_made_longer_by_runs_of_its_own() -> None:
    text = np.random.default_rng(1).integers(50, size=300)
    made = longer(text, 4000, np.random.default_rng(0)).tolist()
    assert len(made) == 4000
    assert made[:300] == text.tolist()
    pairs = set(pairwise(text.tolist()))
    assert np.mean([pair in pairs for pair in pairwise(made)]) > 0.99  # nothing follows the text's end
    assert longer(text, 3, np.random.default_rng(0)).tolist() == text[:3].tolist()


def test_look_ups_find_the_same_from_disk_as_in_memory(folder: Path) -> None:
    shards = Shards(folder)
    drawn = questions(folder, shards, 6, seed=1)
    warm = [shards.find(shard, each.text).length for each in drawn for shard in range(2)]
    for is_random in (False, True):
        others = Shards(folder, is_random)
        others.drop()
        others.open()
        assert [others.find(shard, each.text).length for each in drawn for shard in range(2)] == warm
    assert max(warm) > 1
    found = cold(shards, drawn)
    assert len(found.seconds) == len(found.faults) == 12
    assert min(found.seconds) > 0


def test_questions_go_on_as_the_texts_that_were_held_out(folder: Path) -> None:
    shards = Shards(folder)
    drawn = questions(folder, shards, 10, seed=2)
    assert drawn == questions(folder, shards, 10, seed=2)
    held_out = np.load(folder / "held-out.npz")
    for each in drawn:
        text = held_out[shards.paths[each.shard].stem]
        run = np.array([*each.text, each.next_id])
        assert (np.lib.stride_tricks.sliding_window_view(text, len(run)) == run).all(axis=1).any()


def test_a_router_asks_the_shard_first_whose_subject_has_the_words() -> None:
    router = Router([np.array([90.0, 5.0, 5.0]), np.array([5.0, 90.0, 5.0]), np.array([5.0, 5.0, 90.0])])
    assert router.ranked([1, 1, 2])[:2] == [1, 2]
    assert router.ranked([0])[0] == 0
    assert router.num_bytes == 2 * 9


def test_more_shards_find_no_less_and_all_find_all(folder: Path) -> None:
    shards = Shards(folder)
    drawn = questions(folder, shards, 40, seed=3)
    found = recall(shards, Router.read(folder, shards), drawn)
    assert found.longest[-1] == 1.0
    assert found.longest[0] <= 1.0
    assert found.right[-1] == pytest.approx(np.mean([is_right(shards, each) for each in drawn]))


def is_right(shards: Shards, question: Question) -> bool:
    """Whether the shard with the longest match is right; of equal ones the first that the router names."""
    router = Router.read(shards.paths[0].parent, shards)
    ranked = router.ranked(question.text)
    matches = {shard: shards.find(shard, question.text) for shard in ranked}
    best = max(ranked, key=lambda shard: (matches[shard].length, -ranked.index(shard)))
    return shards.successor(best, matches[best]) == question.next_id


@pytest.mark.long
def test_the_page_has_a_row_for_every_state_and_number_of_shards(folder: Path) -> None:
    shards = Shards(folder)
    drawn = questions(folder, shards, 8, seed=4)
    rows = latencies(folder, shards, drawn)
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| from disk",
        "| from disk, nothing read ahead",
        "| in memory",
    ]
    assert [row.split(" | ")[0] for row in firsts(folder, drawn)[2:]] == ["| read ahead", "| single pages"]
    assert len(warming_up(shards, drawn, 0.05)) > 2
    assert recalls(folder, shards, drawn)[2].startswith("| 1 | ")


def test_the_front_that_knows_who_is_idle_is_faster_and_old_news_herd() -> None:
    pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")
    from benchmarks.scale.boxes import CHOICES, simulate

    runs = {name: simulate(choose, 20, 10, 0.8, seed=1) for name, choose in CHOICES.items()}
    assert {len(seconds) for seconds in runs.values()} == {200}
    assert runs["by chance"] == simulate(CHOICES["by chance"], 20, 10, 0.8, seed=1)
    means = {name: np.mean(seconds) for name, seconds in runs.items()}
    assert means["the least of all"] < means["by chance"] < means["the least of all, a second ago"]
