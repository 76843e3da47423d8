"""A model in stages has the rows of the whole one, whatever happens to its cache; what cannot be opened is refused."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import pytest

from reader_edge_runtime import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.decoding.session import save_session
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import NoDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import (
    ConfigError,
    InstallationError,
    PackageError,
    ProviderError,
    SessionError,
    StageLostError,
)
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.in_flight import FinishedPass
from reader_edge_runtime.execution.pipeline.logged_cache import LoggedCache
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline, serve_stage
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, new_key, write_pipeline
from reader_edge_runtime.target import Pass, Target
from tests.random_operations import check_random_operations
from tests.stages_here import assert_same_rows, free_address, pipeline_here, stages_of

Split = Callable[[int], Path]
CONFIG = EngineConfig(threads=1, max_batch=3)


def answers(target: Target) -> list[list[int]]:
    """Of three prompts, one of them sampled."""
    decoder = make_decoder(target, RetrievalDrafter(DraftConfig()).wait(), CONFIG)
    configs = [GenerationConfig(max_tokens=20, sampling=SamplingConfig(temperature=0.8 * (i % 2))) for i in range(3)]
    requests = [decoder.submit([5, 6, 7, 8 + i] * 3, config) for i, config in enumerate(configs)]
    while any(request.is_running for request in requests):
        decoder.step()
    for request in requests:
        if request.error is not None:
            raise request.error
    return [request.output_token_ids for request in requests]


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "defined"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_rows_have_the_bits_of_the_whole_model(
    num_stages: int, is_native: bool, split_demo: Split, demo_folder: Path
) -> None:
    whole = HostTarget.open(ModelPackage.open(demo_folder), 1, is_native)
    assert_same_rows(whole, pipeline_here(split_demo(num_stages), is_native), 12)


def test_whatever_is_done_to_slots_leaves_what_a_prefill_leaves(split_demo: Split) -> None:
    assert check_random_operations(pipeline_here(split_demo(3)), seed=1, num_operations=40) > 20


def test_a_pass_of_any_width_has_the_same_bits(split_demo: Split) -> None:
    report = probe_width(pipeline_here(split_demo(2)))
    assert report.num_equal == report.num_rows > 0


@pytest.mark.parametrize("lost_at", [[1], [2], [9, 30], [20, 21, 23]], ids=str)
def test_answers_are_the_same_where_stages_forget_all(lost_at: list[int], split_demo: Split, demo_folder: Path) -> None:
    expected = answers(HostTarget.open(ModelPackage.open(demo_folder), 1))
    assert answers(pipeline_here(split_demo(3), lost_at=lost_at)) == expected


def test_a_pass_of_at_least_two_rows_has_the_same_bits(split_demo: Split, demo_folder: Path) -> None:
    """As on machines where one row alone is computed otherwise."""
    whole = HostTarget.open(ModelPackage.open(demo_folder), 1)
    target = pipeline_here(split_demo(2)).with_min_rows(2)
    assert target.min_rows == 2
    assert_same_rows(whole.with_min_rows(2), target, 4)


def test_a_stage_that_is_lost_again_and_again_ends_the_pass(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2), lost_at=range(1, 6))
    wanted = Pass(0, [DraftTree.root(5)], [range(1)])
    with pytest.raises(StageLostError, match=r"Stage 1 is gone\."):
        target.forward(target.new_cache(1, 16), wanted)
    assert target.forward(target.new_cache(1, 16), wanted).top_ids.shape[:2] == (1, 1)


def test_rows_that_are_only_filled_are_there_in_all_stages(split_demo: Split) -> None:
    """What measures passes has rows without a text; they are not scored, and answers beside them stay."""
    target = pipeline_here(split_demo(2))
    following = stages_of(target)
    cache = target.new_cache(2, 64)
    wanted = Pass(0, [DraftTree.root(5)], [range(1)])
    first = target.forward(cache, wanted).top_logits[0].tobytes()
    cache.fill(1, 40)
    again = target.forward(cache, wanted).top_logits[0].tobytes()
    [followed] = following.stages[0]._caches.values()
    assert (again, followed.lengths) == (first, cache.lengths)


def test_a_pass_that_failed_leaves_nothing_unsaid(split_demo: Split, demo_folder: Path) -> None:
    """What happened to the cache before it is not known to the stages: they get all of it again."""
    target = pipeline_here(split_demo(2))
    following = stages_of(target)
    receive, failures = following.receive, iter([None, None, KeyboardInterrupt(), None])

    def interrupted() -> FinishedPass:
        if (failure := next(failures, None)) is not None:
            raise failure
        return receive()

    following.receive = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        answers(target)
    assert answers(target) == answers(HostTarget.open(ModelPackage.open(demo_folder), 1))


def test_rows_that_a_stage_let_go_of_come_again_without_a_loss(split_demo: Split) -> None:
    target = pipeline_here(split_demo(3))
    following = stages_of(target)
    cache, wanted = target.new_cache(1, 16), Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)])
    target.forward(cache, wanted)
    cache.commit(0, [0, 1, 2])
    expected = target.forward(cache, wanted).top_logits.tobytes()
    following.stages[0]._caches.clear()
    assert target.forward(cache, wanted).top_logits.tobytes() == expected
    assert target.in_flight.epoch == 0


def test_a_long_text_is_scored_again_with_several_passes_under_way(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2), lost_at=[12])
    following = stages_of(target)
    text = [5 + n % 900 for n in range(1500)]
    cache, wanted = target.new_cache(1, 16), Pass(0, [DraftTree.root(5)], [range(1)])
    for start in range(0, 1500, 150):
        target.forward(cache, Pass(0, [DraftTree.chain(text[start : start + 150])], [range(1)]))
        cache.commit(0, range(150))
    expected = target.forward(cache, wanted).top_logits.tobytes()
    assert following.most_in_flight == 1
    assert target.forward(cache, wanted).top_logits.tobytes() == expected  # which is lost at first
    assert (target.in_flight.epoch, following.most_in_flight) == (1, 8)


def test_rows_that_come_again_are_scored_by_passes_as_wide_as_they_were(split_demo: Split) -> None:
    """Where one row alone is computed otherwise: the last token of a text may be the only one of its pass."""
    target = pipeline_here(split_demo(2)).with_min_rows(2)
    following = stages_of(target)
    cache = target.new_cache(1, 16)
    target.forward(cache, Pass(0, [DraftTree.chain(list(range(5, 134)))], [range(1)]))
    cache.commit(0, range(129))
    following.stages[0]._caches.clear()
    target.forward(cache, Pass(0, [DraftTree.root(5)], [range(1)]))
    again = [PassFrame.unpacked(memoryview(frame)).num_nodes for frame in following.frames[2:]]
    assert again == [128, 2, 2]


def test_a_spare_box_that_is_slower_is_no_link(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2))
    target._last_s, target.in_flight.trip_s = 0.01, 0.03
    assert target.links_s == pytest.approx(0.02)
    target.in_flight.following.slowest_s = 0.02
    assert target.links_s == 0.0


def test_lanes_fill_the_way_and_no_more(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2))
    assert target.num_microbatches == 1  # nothing is known yet
    target._last_s = 0.01
    for trip_s, num_microbatches in ((0.009, 2), (0.03, 4), (1.0, 8)):
        target.in_flight.trip_s = trip_s
        assert target.num_microbatches == num_microbatches


def test_a_commit_takes_no_frame_of_its_own(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2))
    following = stages_of(target)
    check_random_operations(target, seed=2, num_operations=5)
    before = len(following.frames)
    cache = target.new_cache(2, 16)
    cache.swap(0, 1)
    cache.copy(0, 1, 0)
    assert len(following.frames) == before


def test_stages_let_go_of_caches_that_are_no_more(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2))
    following = stages_of(target)
    wanted = Pass(0, [DraftTree.root(5)], [range(1)])
    for _ in range(3):
        target.forward(target.new_cache(1, 16), wanted)
    cache = target.new_cache(1, 16)
    for _ in range(2):
        target.forward(cache, wanted)
    assert len(following.stages[0]._caches) == 1


def test_rows_that_were_only_assumed_are_not_scored(split_demo: Split) -> None:
    target = pipeline_here(split_demo(2))
    following = stages_of(target)
    cache = target.new_cache(1, 1024)
    cache.assume(0, 1000)
    target.forward(cache, Pass(0, [DraftTree.root(5)], [range(1)]))
    assert len(following.frames) == 1


def test_sessions_of_pipelines_are_refused_in_one_sentence(split_demo: Split, tmp_path: Path) -> None:
    decoder = make_decoder(pipeline_here(split_demo(2)), NoDrafter(), CONFIG)
    assert isinstance(decoder.cache, LoggedCache)
    with pytest.raises(SessionError, match="several boxes are not kept"):
        save_session(decoder, tmp_path / "talk.res", bytes(32), [])


def test_a_stage_alone_is_no_model(split_demo: Split) -> None:
    with pytest.raises(ProviderError, match=r"is stage 1 of 2: give the folder above it"):
        open_target(ModelPackage.open(split_demo(2) / "1"), CONFIG)


def test_a_pipeline_of_other_stages_than_are_there_is_refused(split_demo: Split, tmp_path: Path) -> None:
    (tmp_path / "2").symlink_to(split_demo(3) / "2")
    write_pipeline(tmp_path, ["tcp://127.0.0.1:5551"])
    with pytest.raises(PackageError, match="is not the last of 2 stages"):
        ModelPackage.open(tmp_path)


@contextmanager
def served(stage: Path, address: str, key: Path | None) -> Iterator[list[str]]:
    """A stage in a thread; the lines that it tells."""
    lines: list[str] = []
    is_over, listens = threading.Event(), threading.Event()

    def on_message(line: str) -> None:
        lines.append(line)
        listens.set()

    thread = threading.Thread(
        target=serve_stage, args=(ModelPackage.open(stage), address, key, CONFIG, on_message, is_over.is_set)
    )
    thread.start()
    try:
        assert listens.wait(30)
        yield lines
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("is_key_named", [True, False])
def test_a_pipeline_with_its_key_has_the_rows_of_the_whole_model(
    split_demo: Split, demo_folder: Path, tmp_path: Path, is_key_named: bool
) -> None:
    """Unless it is named, the key is the one beside the stage."""
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    address = free_address()
    for name in ("1", "2"):
        (tmp_path / name).symlink_to(split_demo(2) / name)
    write_pipeline(tmp_path, [address])
    new_key(tmp_path)
    with served(tmp_path / "1", address, tmp_path / KEY_NAME if is_key_named else None) as lines:
        piped = open_pipeline(ModelPackage.open(tmp_path), CONFIG)
        assert_same_rows(HostTarget.open(ModelPackage.open(demo_folder), 1), piped, 3)
        assert lines[0] == f"Stage 1 of 2 listens at {address}."
        assert lines[1].startswith("Serves ")
        assert lines[1].endswith("; hands on to the client.")


@pytest.mark.parametrize(
    ("name", "address", "error", "sentence"),
    [
        ("2", "tcp://127.0.0.1:5551", PackageError, "is the last stage, which the client runs: serve the others"),
        (".", "tcp://127.0.0.1:5551", PackageError, "holds all stages: give one, as '.*/1'"),
        ("1", "5551", ConfigError, "'5551' is no address to listen at: give tcp://HOST:PORT"),
    ],
)
def test_no_stage_is_refused(name: str, address: str, error: type[Exception], sentence: str, split_demo: Split) -> None:
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    with pytest.raises(error, match=sentence):
        serve_stage(ModelPackage.open(split_demo(2) / name), address, None, CONFIG, print)


def test_without_pyzmq_its_extra_is_named(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"needs pyzmq, .* pip install 'reader-edge\[pipeline\]'"):
        open_pipeline(ModelPackage.open(split_demo(2)), CONFIG)
