"""Grammars of strangers: none takes more time or memory than it may, and the end of one is no other's."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.answer import GenerationResult
from reader_edge_runtime.decoding.sampling.grammar import _WORKER, GrammarConstraint, Grammars
from reader_edge_runtime.decoding.sampling.grammar_process import GrammarProcess, Vocabulary, end_reason
from reader_edge_runtime.errors import BusyError, ConfigError, InstallationError, PromptError
from reader_edge_runtime.machine.bounded_process import BoundedProgram
from reader_edge_runtime.machine.bounded_worker import OUT_OF_MEMORY, SessionEndedError

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

LIMIT_S = 60  # that no test comes near
ANY = GenerationConfig(max_tokens=20, sampling=SamplingConfig(temperature=1.0), grammar=Grammar("regex", ".{1,500}"))
HOSTILE = {
    "memory": ("json_schema", json.dumps({"allOf": [{"pattern": f".*{chr(97 + i)}.{{{i}}}"} for i in range(26)]})),
    "states": ("regex", "(.*a.{10000}b){100}"),
    "alternatives": ("regex", "|".join(f".{{{i}}}x" for i in range(1, 6000))),
    "expressions": ("regex", "(.{0,6000}[^a]{0,6000}){6000}"),
    "depth": ("regex", "(" * 30000 + "a" + ")" * 30000),
    "optional": ("regex", "(" + "".join(f"({chr(97 + i % 26)}.*)?" for i in range(6000)) + ")"),
    "ambiguous": ("lark", 'start: s\ns: s s s | s s | "a"?'),
    "rules": (
        "lark",
        "start: " + " | ".join(f"a{i}" for i in range(2000)) + "\n"
        "" + "\n".join(f'a{i}: a{(i * 7 + 1) % 2000} a{(i * 3 + 1) % 2000} | "x"' for i in range(2000)),
    ),
}


def grammar_pids(of: Engine | BoundedProgram) -> list[int]:
    """The processes of an engine's grammars, where the system tells."""
    forker = (of._grammars._program if isinstance(of, Engine) else of)._forker
    assert forker is not None
    children = Path(f"/proc/{forker.process.pid}/task/{forker.process.pid}/children")
    if not children.exists():
        pytest.skip("the system does not tell a process's children")
    return [int(pid) for pid in children.read_text().split()]


def script(folder: Path, program: str) -> str:
    """An executable that stands for Python, and runs this."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def no_process_is_left(engine: Engine) -> bool:
    end = time.monotonic() + LIMIT_S
    while grammar_pids(engine) and time.monotonic() < end:
        time.sleep(0.01)
    return not grammar_pids(engine)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_followed_in_bounded_time(engine: Engine, name: str) -> None:
    kind, text = HOSTILE[name]
    config = replace(ANY, grammar=Grammar(kind, text))
    start = time.monotonic()
    with contextlib.suppress(ConfigError):  # of which test_grammar.py tells
        assert engine.generate("# tar", config).finish_reason in ("stop", "length")
    assert time.monotonic() - start < LIMIT_S
    assert engine.generate("# tar", ANY).finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGPROF, "takes more time than it may: simplify it"),
        (-signal.SIGABRT, "takes more memory than it may: simplify it"),
        (OUT_OF_MEMORY, "takes more memory than it may: simplify it"),
        (-signal.SIGSEGV, "is nested deeper than can be followed: make it flatter"),
        (1, "cannot be followed, since its process ended: ask again"),
        (0, "cannot be followed, since its process ended: ask again"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals")
def test_a_refusal_tells_how_the_process_ended(code: int, words: str) -> None:
    assert end_reason(SessionEndedError(code)) == words
    assert end_reason(TimeoutError()) == "takes more time than it may: simplify it"


@pytest.mark.long
def test_time_is_named_only_where_it_is_the_reason(engine: Engine) -> None:
    for name, words in (
        ("memory", "takes more (time|memory) than it may: simplify it"),
        ("expressions", "too many expressions"),
    ):
        with pytest.raises(ConfigError, match=words):
            engine.generate("# tar", replace(ANY, grammar=Grammar(*HOSTILE[name])))


def test_a_prompt_that_cannot_be_leaves_no_process(engine: Engine) -> None:
    engine.generate("# tar", ANY)
    with pytest.raises(PromptError) as refusal:  # whose traceback holds all that was made meanwhile
        engine.answer([0] * engine.package.manifest.max_context, ANY)
    assert no_process_is_left(engine)
    assert "context" in str(refusal.value)


def test_a_grammar_whose_process_ends_ends_its_request_alone(engine: Engine) -> None:
    long = replace(ANY, max_tokens=100, ignores_eos=True, grammar=Grammar("regex", "[a-z ]{5000}"))
    answers = [engine.answer("# tar", config) for config in (long, ANY, replace(ANY, grammar=None), long)]
    with engine.working() as decoder:
        for answer in answers:
            decoder.enqueue(answer.request)
        while not all(answer.request.num_output_tokens for answer in answers):
            decoder.step()
        first, *_ = sorted(grammar_pids(engine))
        os.kill(first, signal.SIGKILL)
        while any(answer.request.is_running for answer in answers):
            decoder.step()
    results = [GenerationResult.of_chunks([chunk]) for answer in answers if (chunk := answer.take()) is not None]
    assert [each.finish_reason for each in results].count("error") == 1
    assert str(results[0].error) == (
        "The grammar of kind 'regex' cannot be followed, since its process was ended by SIGKILL: ask again."
    )
    for result, config in zip(results[1:], (ANY, replace(ANY, grammar=None), long), strict=True):
        assert result.token_ids == engine.generate("# tar", config).token_ids


def test_where_the_process_that_starts_them_ends_the_next_grammar_restarts_it(engine: Engine) -> None:
    expected = engine.generate("# tar", ANY).token_ids
    grammar_pids(engine)
    forker = engine._grammars._program._forker
    assert forker is not None
    forker.process.kill()
    forker.process.wait()
    assert engine.generate("# tar", ANY).token_ids == expected


def test_without_descriptors_a_grammar_is_refused_and_others_go_on(engine: Engine) -> None:
    resource = pytest.importorskip("resource", reason="Windows limits no descriptors")
    expected = engine.generate("# tar", ANY).token_ids
    running = engine.stream("# tar", ANY)
    chunks = [next(running)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"cannot be started .*: ask without a grammar"):
            engine.generate("# tar", ANY)
        chunks += running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == list(expected)
    assert engine.generate("# tar", ANY).token_ids == expected


def test_nobody_tells_how_a_process_ended_whose_parent_has_ended(engine: Engine) -> None:
    program = BoundedProgram(_WORKER, engine._grammars._program._messages)
    process = program.start()
    (pid,) = grammar_pids(program)
    assert program._forker is not None
    program._forker.process.kill()
    program._forker.process.wait()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EOFError) as ended:
        process.channel.receive()
    assert end_reason(ended.value) == "cannot be followed, since its process ended: ask again"
    process.close()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/nowhere/python", "No such file or directory"),
        ("import sys; sys.stdin.buffer.raw.read(1 << 20)", "it ends at once"),
    ],
    ids=["none", "one that ends"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows runs no scripts by their first line")
def test_without_a_python_grammars_are_refused(
    program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", program if program.startswith("/") else script(tmp_path, program))
    with pytest.raises(ConfigError, match=rf"grammars cannot be started \({reason}\): ask without a grammar"):
        Grammars(Vocabulary([b"a"], [], [], "{}")).constraint(Grammar("regex", "a"))


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"pip install 'reader-edge\[grammar\]'"):
        Grammars(Vocabulary([b"a"], [], [], "{}"))


@pytest.mark.skipif(sys.platform == "win32", reason="this is what Windows does always")
def test_without_forks_each_grammar_has_its_process(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, which a platform by that name stands for, here and in the process."""
    grammar = Grammar("regex", ".{1,500}")
    expected = engine._grammars.constraint(grammar)
    as_windows = f"import runpy, sys; sys.platform = 'win32'; runpy.run_module({_WORKER!r}, run_name='__main__')"
    monkeypatch.setattr("sys.executable", script(tmp_path, as_windows))
    monkeypatch.setattr("sys.platform", "win32")
    program = BoundedProgram(_WORKER, engine._grammars._program._messages)
    started = [GrammarProcess(program.start(), "grammar") for _ in range(2)]
    alone, other = (GrammarConstraint(process, grammar, 6144) for process in started)
    assert program._forker is None
    for _ in range(3):
        assert (alone.mask() == expected.mask()).all()
        token_id = int(alone.mask().argmax())
        for each in (alone, expected):
            each.advance(token_id)
    other.close()
    alone.prepare()
    alone.advance(token_id)  # what was requested and not read comes first
    alone.close()
    with pytest.raises(ConfigError, match="cannot be followed, since its process"):
        alone.advance(token_id)


def test_an_answer_that_ended_has_no_process_left(engine: Engine) -> None:
    engine.generate_batch(["# tar"] * 3, ANY)
    stream = engine.stream("# tar", ANY)
    next(stream)
    assert len(grammar_pids(engine)) >= 1
    stream.close()
    answer = engine.answer("# tar", ANY)  # which is never started
    del answer
    gc.collect()
    assert no_process_is_left(engine)


def test_more_grammars_at_once_than_may_have_processes_are_refused(engine: Engine) -> None:
    async def ask() -> None:
        async with AsyncEngine(engine) as served:
            most = 2 * engine.decoder.config.max_batch
            tasks = [asyncio.create_task(served.generate("# tar", ANY)) for _ in range(most + 3)]
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [each for each in ended if isinstance(each, Exception)]
            assert [str(each) for each in refused] == [
                f"{most} answers with grammars run or wait already: try again later."
            ] * 3
            assert all(isinstance(each, BusyError) for each in refused)
            left = asyncio.create_task(served.generate("# tar", ANY))
            await asyncio.sleep(0)
            left.cancel()
            assert (await served.generate("# tar", ANY)).finish_reason in ("stop", "length")

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    gc.collect()
    assert no_process_is_left(engine)
