"""A prefix cache: after a restart known texts are not computed again, and no answer, logit or stranger notices."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.prefix_cache import CHUNK, PrefixCache
from reader_edge_runtime.decoding.prefix_files import FORMAT, PrefixFiles, erase_prefixes
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError, PrefixError
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, reference
from tests.small_disk import small_disk

GREEDY = GenerationConfig(max_tokens=40, ignores_eos=True)
PROMPT = "# tar\n\n> Archiving utility.\n" * 12
TARGETS: dict[str, Callable[[], FakeTarget]] = {
    "attention": lambda: FakeTarget(make_manifest(6, 512)),
    "hybrid": lambda: FakeHybridTarget(hybrid_manifest(6)),
}


def load(demo_folder: Path, folder: Path, **options: int) -> Engine:
    config = EngineConfig(is_calibrated=False, is_probed=False, prefix_cache=folder)
    return Engine.load(demo_folder, replace(config, **options))  # type: ignore[arg-type]


def answer(engine: Engine, prompt: str | list[int], config: GenerationConfig = GREEDY) -> tuple[int, object]:
    """How many tokens were reused, and tokens with all logits that they were chosen from."""
    logits: list[bytes] = []
    engine.decoder.on_logits = lambda _, row: logits.append(row.tobytes())
    result = engine.generate(prompt, config)
    engine.decoder.on_logits = None
    return result.stats.num_reused_tokens, (result.token_ids, logits)


def files(folder: Path, kind: str = "rows") -> list[Path]:
    return sorted(folder.glob(f"??/*.{kind}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def decoder_over(target: FakeTarget, folder: Path, seed: int = 0, prefill_chunk: int = 48) -> Decoder:
    decoder = Decoder(target, RandomDrafter(6, 9, seed), EngineConfig(max_batch=4, prefill_chunk=prefill_chunk))
    decoder.slots.prefixes = PrefixCache(PrefixFiles(folder, 1 << 30), b"model", decoder.cache)
    return decoder


def flush(decoder: Decoder) -> None:
    assert decoder.slots.prefixes is not None
    decoder.slots.prefixes.flush()


def text_of(seed: int, length: int) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(6, size=length)))


def test_an_engine_after_a_restart_reuses_prompt_and_answer_bit_for_bit(demo_folder: Path, folder: Path) -> None:
    with load(demo_folder, folder) as engine:
        num_reused, first = answer(engine, PROMPT)
        assert num_reused == 0
        longer = engine.encode_prompt(PROMPT) + list(first[0])  # type: ignore[index]
        _, further = answer(engine, longer)
    for prompt, expected in ((engine.tokenizer.encode(PROMPT), first), (longer, further)):
        with load(demo_folder, folder) as engine:
            num_reused, again = answer(engine, prompt)
        assert again == expected
        assert num_reused == (len(prompt) - 1) // CHUNK * CHUNK > 0


def test_prompts_of_a_batch_share_what_is_on_disk(demo_folder: Path, folder: Path) -> None:
    prompts = [PROMPT + ending for ending in ("# git\n", "# ls\n", "")]
    with load(demo_folder, folder) as engine:
        engine.generate(PROMPT, GREEDY)
        expected = [result.token_ids for result in engine.generate_batch(prompts, GREEDY)]
    with load(demo_folder, folder) as engine:
        results = engine.generate_batch(prompts, GREEDY)
    assert [result.token_ids for result in results] == expected
    assert all(result.stats.num_reused_tokens >= CHUNK for result in results)


def test_what_drafting_learned_is_there_after_a_restart_for_the_same_salt(demo_folder: Path, folder: Path) -> None:
    salted = replace(GREEDY, cache_salt="a")

    def drafted(config: GenerationConfig) -> int:
        with load(demo_folder, folder) as engine:
            assert isinstance(engine.decoder.drafter, RetrievalDrafter)
            engine.decoder.drafter.wait()
            return engine.generate("# tar\n\n> Archiving utility.", config).stats.accepted_by_source["history"]

    assert drafted(salted) == 0
    assert drafted(GREEDY) == 0
    assert drafted(salted) > 10


def test_what_an_engine_was_made_to_forget_is_not_drafted_from(demo_folder: Path, folder: Path) -> None:
    with load(demo_folder, folder) as engine:
        assert isinstance(engine.decoder.drafter, RetrievalDrafter)
        engine.decoder.drafter.wait()
        engine.generate("# tar\n\n> Archiving utility.", GREEDY)
    with load(demo_folder, folder) as engine:
        engine.forget()
        assert isinstance(engine.decoder.drafter, RetrievalDrafter)
        engine.decoder.drafter.wait()
        assert not engine.generate("# tar\n\n> Archiving utility.", GREEDY).stats.accepted_by_source["history"]


def test_texts_of_another_salt_model_or_machine_are_not_found(folder: Path) -> None:
    decoder = decoder_over(TARGETS["attention"](), folder)
    text = text_of(1, 200)
    decoder.finish(decoder.submit(text, replace(GREEDY, cache_salt="a")))
    flush(decoder)
    for salt, model, num_expected in (("a", b"model", 192), ("", b"model", 0), ("b", b"model", 0), ("a", b"other", 0)):
        decoder = decoder_over(TARGETS["attention"](), folder)
        decoder.slots.prefixes = PrefixCache(PrefixFiles(folder, 1 << 30), model, decoder.cache)
        request = decoder.submit(text, replace(GREEDY, cache_salt=salt))
        decoder.finish(request)
        assert request.stats.num_reused_tokens == num_expected, (salt, model)


@pytest.mark.parametrize("kind", TARGETS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 30),
    prefill_chunk=st.sampled_from([7, 64, 100]),
    requested=st.lists(
        st.tuples(st.sampled_from(["", "a"]), st.integers(0, 3), st.booleans(), st.booleans()), min_size=2, max_size=8
    ),
)
def test_every_answer_is_that_of_an_engine_without_a_cache(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    seed: int,
    prefill_chunk: int,
    requested: list[tuple[str, int, bool, bool]],
) -> None:
    """Texts that share their beginnings, with restarts, cancelled requests and requests side by side."""
    target, folder = TARGETS[kind](), tmp_path_factory.mktemp("kept")
    shared = text_of(seed, 150)
    texts = [shared + text_of(seed + n, 30 * n) for n in range(3)] + [text_of(seed + 9, 100)]
    decoder, running = decoder_over(target, folder, seed, prefill_chunk), []
    for salt, number, restarts, is_cancelled in requested:
        request = decoder.submit(texts[number], replace(GREEDY, max_tokens=12, cache_salt=salt))
        decoder.step()
        if is_cancelled:
            decoder.cancel(request)
        else:
            running.append(request)
        if restarts:
            decoder.finish(*running)
            flush(decoder)
            decoder = decoder_over(target, folder, seed, prefill_chunk)
    decoder.finish(*running)
    flush(decoder)
    for request in running:
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.output_token_ids == reference(target.manifest, prompt, request.config, target)


@pytest.mark.parametrize(("length", "num_expected"), [(64, 0), (65, 0), (80, 64), (194, 128), (199, 192), (1200, 1152)])
def test_recurrent_layers_go_on_from_the_last_chunk_that_a_next_turn_may_share(
    folder: Path, length: int, num_expected: int
) -> None:
    target, text = FakeHybridTarget(hybrid_manifest(6, 2048)), text_of(2, length)
    decoder = decoder_over(target, folder)
    decoder.finish(decoder.submit(text, GREEDY))
    flush(decoder)
    decoder = decoder_over(target, folder)
    request = decoder.submit([*text[:-4], *text_of(3, 40)], GREEDY)
    decoder.finish(request)
    assert request.stats.num_reused_tokens == num_expected
    prompt = request.token_ids[: request.num_prompt_tokens]
    assert request.output_token_ids == reference(target.manifest, prompt, request.config, target)


def cut_short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 16]) + data[-8:]


@pytest.mark.parametrize("spoil", [cut_short, flipped, lambda data: b"", lambda data: data + b"\0"])
@pytest.mark.parametrize("kind", ["rows", "states"])
def test_a_spoilt_file_is_a_miss_that_is_shown_once_and_written_again(
    folder: Path, spoil: Callable[[bytes], bytes], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, text = TARGETS["hybrid"](), text_of(1, 300)
    first = decoder_over(target, folder)
    first.finish(first.submit(text, GREEDY))
    flush(first)
    spoilt = files(folder, kind)[:4]  # those of the prompt
    good = {path: path.read_bytes() for path in spoilt}
    for path in spoilt:
        path.write_bytes(spoil(good[path]))
    decoder = decoder_over(target, folder)
    with caplog.at_level(logging.WARNING, "reader_edge.prefix_cache"):
        request = decoder.submit(text, GREEDY)
        decoder.finish(request)
        flush(decoder)
    assert request.stats.num_reused_tokens == 0
    assert request.output_token_ids == reference(target.manifest, text, request.config, target)
    assert len(caplog.records) == 1
    assert {path: path.read_bytes() for path in spoilt if path.exists()}.items() <= good.items()
    decoder = decoder_over(target, folder)
    request = decoder.submit(text, GREEDY)
    decoder.finish(request)
    assert request.stats.num_reused_tokens == 256


def test_another_text_s_file_under_a_name_is_a_miss(demo_folder: Path, folder: Path) -> None:
    with load(demo_folder, folder) as engine:
        engine.generate("# git\n\n> Version control.\n" * 12, GREEDY)
        others = files(folder)
        _, expected = answer(engine, PROMPT)
    own = [path for path in files(folder) if path not in others]
    for path, other in zip(own, others, strict=False):
        path.write_bytes(other.read_bytes())
    with load(demo_folder, folder) as engine:
        num_reused, again = answer(engine, PROMPT)
    assert (num_reused, again) == (0, expected)


def test_a_full_disk_costs_no_answer_and_is_shown_once(
    demo_folder: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reader_edge.prefix_cache")
    with small_disk(10_000), load(demo_folder, folder) as engine:
        answered = [answer(engine, PROMPT), answer(engine, PROMPT + "more")]
    assert len(answered) == 2
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(caplog.records) == 1


@pytest.mark.long
def test_files_keep_within_their_bound_and_what_was_used_last_is_kept(folder: Path) -> None:
    target, bound = TARGETS["attention"](), 100_000
    decoder = decoder_over(target, folder)
    decoder.slots.prefixes = PrefixCache(PrefixFiles(folder, bound), b"model", decoder.cache)
    used = text_of(0, 130)
    for seed in range(60):
        decoder.finish(decoder.submit(used if seed % 2 else text_of(seed, 130), GREEDY))
        flush(decoder)
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= bound
    assert len(files(folder)) > 4
    decoder = decoder_over(target, folder)
    request = decoder.submit(used, GREEDY)
    decoder.finish(request)
    assert request.stats.num_reused_tokens == 128


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_files_are_their_user_s_alone_and_so_is_the_folder(folder: Path) -> None:
    decoder = decoder_over(TARGETS["hybrid"](), folder)
    decoder.finish(decoder.submit(text_of(0, 200), GREEDY))
    flush(decoder)
    places = [folder, *folder.rglob("*")]
    assert len(places) > 4
    assert [path for path in places if path.stat().st_mode & 0o077] == []
    folder.chmod(0o770)
    with pytest.raises(PrefixError, match=r"chmod go-w"):
        PrefixFiles(folder, 1 << 30)


def test_erasing_takes_the_files_of_a_cache_alone(folder: Path, tmp_path: Path) -> None:
    decoder = decoder_over(TARGETS["hybrid"](), folder)
    decoder.finish(decoder.submit(text_of(0, 200), GREEDY))
    flush(decoder)
    (folder / "notes.txt").write_text("mine")
    assert erase_prefixes(folder) > 1000
    assert [path.name for path in folder.rglob("*")] == ["notes.txt"]
    with pytest.raises(PrefixError, match="holds no prefix cache: it was left alone"):
        erase_prefixes(folder)
    request = decoder.submit(text_of(0, 200), GREEDY)  # by an engine that still runs
    decoder.finish(request)
    assert request.stats.num_reused_tokens == 199


def test_a_folder_that_is_erased_under_a_server_is_filled_again(folder: Path) -> None:
    decoder = decoder_over(TARGETS["attention"](), folder)
    decoder.slots.prefixes = PrefixCache(PrefixFiles(folder, 100_000), b"model", decoder.cache)
    for seed in range(2):
        decoder.finish(decoder.submit(text_of(seed, 130), GREEDY))
        flush(decoder)
        assert erase_prefixes(folder) > 1000
        assert not folder.exists()


def test_what_others_erase_meanwhile_is_no_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixFiles(folder, 1 << 20)
    for number in range(3):
        kept.put(bytes([number]) * 32, "rows", {"a": np.zeros(10, np.int32)})
    kept.flush()
    unlink = Path.unlink

    def unlinked_twice(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinked_twice)
    assert erase_prefixes(folder) > 300
    assert not folder.exists()


def test_what_has_no_room_beside_others_takes_none_from_them(folder: Path) -> None:
    kept, small = PrefixFiles(folder, 1 << 20), {"a": np.zeros(10_000, np.int32)}
    for number in range(10):
        kept.put(bytes([number]) * 32, "rows", small)
    kept.put(bytes(32), "drafts", {"a": np.zeros(1 << 20, np.int32)}, is_renewed=True)
    kept.flush()
    assert len(files(folder)) == 10


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_a_cache_whose_parts_are_links_or_open_to_others_is_refused(folder: Path, tmp_path: Path) -> None:
    PrefixFiles(folder, 1 << 30)
    (folder / "ab").mkdir()
    (folder / "ab").chmod(0o777)
    with pytest.raises(PrefixError, match=r"ab' can be written by its group or others: `chmod go-w` it"):
        PrefixFiles(folder, 1 << 30)
    (folder / "ab").rmdir()
    (folder / "ab").symlink_to(tmp_path)
    with pytest.raises(PrefixError, match="ab' of a prefix cache is a link: remove it"):
        PrefixFiles(folder, 1 << 30)


class _FarCache:
    """What a cache on a device, or of a stage, says of itself."""

    def __init__(self, has_all_rows: bool) -> None:
        self.has_all_rows, self.has_host_rows = has_all_rows, False


def test_what_cannot_keep_texts_is_refused_in_one_sentence(demo_folder: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PrefixError, match="name another folder"):
        load(demo_folder, tmp_path / "file")
    with pytest.raises(ConfigError, match=r"prefix_bytes is 1000, but .* raise it \(--prefix-bytes\)\."):
        load(demo_folder, folder, prefix_bytes=1000)
    with pytest.raises(ConfigError, match="prefix_cache is 3, which can be no path"):
        EngineConfig(prefix_cache=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"prefix_cache is 'xxx.*, longer than a path may be: give a shorter one\."):
        EngineConfig(prefix_cache=Path("x" * 300))
    for has_all_rows, place in ((True, "on a GPU"), (False, "over several boxes")):
        cache: Cache = _FarCache(has_all_rows)  # type: ignore[assignment]
        with pytest.raises(ConfigError, match=f"keeps no texts of a model {place}"):
            PrefixCache(PrefixFiles(folder, 1 << 30), b"", cache)


def test_prompts_whose_tokens_are_scored_are_computed(demo_folder: Path, folder: Path) -> None:
    with load(demo_folder, folder) as engine:
        engine.generate(PROMPT, GREEDY)
    with load(demo_folder, folder) as engine:
        result = engine.generate(PROMPT, GREEDY, wants_prompt_logprobs=True)
        assert result.stats.num_reused_tokens == 0


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
files, number = PrefixFiles(Path(sys.argv[1]), 1 << 20), int(sys.argv[2])
while True:
    for seed in range(50):
        values = np.full(5000, seed, np.int32)
        files.put(bytes([seed]) * 32, "rows", {"a": values}, is_renewed=True)
    files.flush()
    print("written", flush=True)
"""


@pytest.mark.long
def test_two_processes_that_are_killed_as_they_write_leave_whole_files_within_the_bound(folder: Path) -> None:
    for _ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), str(n)], stdout=subprocess.PIPE, text=True)
            for n in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "written\n"
        time.sleep(0.05)
        for writer in writers:
            writer.kill()
            writer.communicate()
        whole = files(folder)
        assert len(whole) > 10
        for path in whole:
            seed = int(path.parent.name, 16)
            arrays = FORMAT.read(path, bytes([seed]) * 32)
            np.testing.assert_array_equal(arrays["a"], np.full(5000, seed, np.int32))
        assert sum(path.stat().st_size for path in whole) <= 1 << 20
    own = PrefixFiles(folder, 1 << 20)
    own.put(bytes(32), "rows", {"a": np.zeros(5000, np.int32)}, is_renewed=True)
    own.flush()
    assert [path for path in folder.rglob("*") if ".partial-" in path.name] == []


def test_what_waits_too_long_for_the_disk_is_left_out_and_nobody_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixFiles, "_later", lambda self, job: None)  # a disk that never writes
    kept, large = PrefixFiles(folder, 1 << 30), {"a": np.zeros(5 << 20, np.int32)}
    assert [kept.put(bytes([n]) * 32, "rows", large) for n in range(5)] == [True, True, True, False, False]
