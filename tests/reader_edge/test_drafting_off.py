"""Engines that may not draft, and drafted answers of a real model: the same answers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.testclient import TestClient

from reader_edge.cli import main
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.measuring.width_probe import WidthReport
from tests.reader_edge.batch.conftest import request
from tests.reader_edge.package_copy import PackageCopy

PROMPT = "# tar"
OUTPUT = "drafting is off"
# Commands that run a model, and those that do not, or run its passes alone: a new command belongs in one of them.
ANSWERING = {"run", "demo", "serve", "batch", "warm", "verify", "bench decode", "bench record", "bench replay"}
OTHERS = {
    *(
        "bench cost",
        "cache",
        "card",
        "completion",
        "doctor",
        "export",
        "forget",
        "info",
        "launch",
        "list",
        "pull",
        "push",
    ),
    *("datastore build", "datastore info", "datastore merge", "datastore search", "package sign", "package verify"),
    *("rm", "series export", "series forecast", "series train", "split", "stage", "train-drafter", "tune"),
}
Invoke = Callable[..., Result]


@pytest.fixture
def invoke(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command on a machine whose probe fails."""
    monkeypatch.setattr(
        "reader_edge_runtime.assembly.load_or_settle", lambda target, *_: (target, WidthReport(16, 4, 1e-5))
    )
    return lambda *arguments, **options: runner.invoke(main, [*map(str, arguments)], **options)


@pytest.fixture
def never_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to draft with is made, called or measured for."""
    for name in ("RetrievalDrafter", "load_or_measure", "open_draft_model_source", "HistoryFile"):
        monkeypatch.setattr(f"reader_edge_runtime.assembly.{name}", lambda *_, **__: pytest.fail("loaded"))


@pytest.fixture(scope="module")
def plain(demo_folder: Path) -> Callable[[str, int], str]:
    """What plain decoding says to a prompt."""
    engine = Engine.load(demo_folder, EngineConfig(is_drafted=False))
    return lambda prompt, max_tokens: engine.generate(prompt, GenerationConfig(max_tokens=max_tokens)).text


Plain = Callable[[str, int], str]


def test_every_command_that_answers_is_tried_here() -> None:
    names = set()
    for name, command in main.commands.items():
        names |= {f"{name} {each}" for each in command.commands} if isinstance(command, click.Group) else {name}
    assert names == ANSWERING | OTHERS


@pytest.fixture
def sources(tmp_path: Path) -> Sequence[object]:
    """Options that name what can be drafted from, which is opened by nobody."""
    datastore = tmp_path / "none.ds"
    datastore.write_bytes(b"not opened")
    return "--datastore", datastore, "--history", tmp_path / "history.bin"


@pytest.mark.usefixtures("never_drafts")
def test_run(invoke: Invoke, plain: Plain, sources: Sequence[object]) -> None:
    result = invoke("run", "-p", PROMPT, "-n", "20", "--stats", *sources)
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") == plain(PROMPT, 20).rstrip("\n")
    assert f"{OUTPUT}. --guard drafts all the same" in result.stderr
    assert "What was named to draft from is not loaded." in result.stderr
    assert "off: wide passes give other bits here" in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_run_json_tells_the_reason(invoke: Invoke, plain: Plain) -> None:
    result = invoke("run", "-p", PROMPT, "-n", "20", "--json")
    fields = json.loads(result.stdout)
    assert fields["text"] == plain(PROMPT, 20)
    assert (fields["stats"]["num_drafted_tokens"], fields["stats"]["drafts"]) == (0, "none")
    assert fields["stats"]["drafts_reason"] == "wide passes give other bits here"


@pytest.mark.usefixtures("never_drafts")
def test_run_compare(invoke: Invoke, plain: Plain) -> None:
    result = invoke("run", "-p", PROMPT, "-n", "20", "--compare", "--json")
    fields = json.loads(result.stdout)
    assert (fields["identical"], fields["text"]) == (True, plain(PROMPT, 20))
    assert fields["stats"]["num_drafted_tokens"] == 0
    assert OUTPUT in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_demo(invoke: Invoke, plain: Plain) -> None:
    result = invoke("demo", "-p", PROMPT, "-n", "20")
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") == plain(PROMPT, 20).rstrip("\n")
    assert OUTPUT in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_run_with_a_session(invoke: Invoke, plain: Plain, tmp_path: Path) -> None:
    options = ("run", "-p", PROMPT, "-n", "20", "--session", tmp_path / "session", "--stats")
    for _ in range(2):
        result = invoke(*options)
        assert result.stdout.rstrip("\n") == plain(PROMPT, 20).rstrip("\n")
        assert "nothing drafted" in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_a_chat(invoke: Invoke, plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.chat.prompt_input.PromptInput.read", lambda question: None)
    result = invoke("run", "-n", "20", "--stats", input=f"{PROMPT}\n")
    assert result.exit_code == 0, result.output
    assert plain(PROMPT, 20).strip() in result.stdout
    assert OUTPUT in result.stderr
    assert "off: wide passes give other bits here" in result.stderr


@pytest.mark.usefixtures("never_drafts")
@pytest.mark.parametrize("options", [(), ("--no-draft",)], ids=["requested to draft", "--no-draft"])
def test_serve(invoke: Invoke, plain: Plain, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]) -> None:
    shown: dict[str, Any] = {}

    def ask(app: Starlette, socket: object, engine: AsyncEngine) -> None:
        body = {"model": "demo", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
        with TestClient(app, base_url="http://127.0.0.1") as client:
            shown["answer"] = client.post("/v1/completions", json=body).json()
            shown["health"] = client.get("/health").json()
            shown["metrics"] = client.get("/metrics").text

    monkeypatch.setattr("reader_edge.server.listening.listen", ask)
    result = invoke("serve", "--port", "0", *options)
    assert result.exit_code == 0, result.output
    assert shown["answer"]["choices"][0]["text"] == plain(PROMPT, 20)
    reason = "it was switched off" if options else "wide passes give other bits here"
    assert shown["health"] == {"status": "ok", "drafts": "none", "reason": reason}
    assert "vllm:spec_decode_num_draft_tokens_total 0.0" in shown["metrics"]
    assert (OUTPUT in result.stderr) == (not options)


@pytest.mark.usefixtures("never_drafts")
def test_batch(invoke: Invoke, plain: Plain, tmp_path: Path) -> None:
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(request(number)) + "\n" for number in range(3)))
    result = invoke("batch", given, out, "--name", "demo")
    assert result.exit_code == 0, result.output
    answers = [json.loads(line)["response"]["body"]["choices"][0]["text"] for line in out.read_text().splitlines()]
    assert sorted(answers) == sorted(plain(f"{PROMPT} {number}", 10 + number) for number in range(3))
    assert OUTPUT in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_warm(invoke: Invoke, package: PackageCopy) -> None:
    result = invoke("warm", package.folder, "--tokens", "40")
    assert result.exit_code == 0, result.output
    assert "of 40 tokens in" in result.stdout
    assert OUTPUT in result.stderr


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(f"{PROMPT}\n")
    return path


@pytest.mark.usefixtures("never_drafts")
def test_bench_decode(invoke: Invoke, prompts: Path) -> None:
    result = invoke("bench", "decode", "--prompts", prompts, "-n", "12", "--rounds", "1", "--each-set", "--json")
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert (fields["identical"], fields["drafted"]["acceptance_length"]) == (True, 1.0)
    assert OUTPUT in result.stderr


def test_bench_decode_at_fixed_nodes_says_that_it_drafts(invoke: Invoke, prompts: Path) -> None:
    options = ("--prompts", prompts, "-n", "12", "--rounds", "1", "--nodes", "4")
    result = invoke("bench", "decode", *options, "--json")
    assert result.exit_code == 0, result.output
    assert max(each["acceptance_length"] for each in json.loads(result.stdout)["fixed_nodes"]) > 1
    assert OUTPUT in result.stderr
    assert "At fixed numbers of nodes, drafts are made all the same" in result.stderr


@pytest.mark.usefixtures("never_drafts")
def test_bench_record(invoke: Invoke, plain: Plain, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    result = invoke("bench", "record", "--prompts", prompts, "-n", "12", "-o", out)
    assert result.exit_code == 0, result.output
    assert OUTPUT in result.stderr
    turn = json.loads(out.read_text())["turns"][0]
    assert turn["output"] == plain(PROMPT, 12)
    assert len(turn["top_ids"]) >= 12  # the target's scores are recorded all the same


def test_verify_says_that_it_drafts(invoke: Invoke, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trial decoders, which no engine takes (tests/runtime/decoding/test_draft_permission.py)."""

    def prove(engine: Engine, *_: object, **__: object) -> None:
        assert not engine.draft_permission.is_on
        raise ConfigError("Far enough.")

    monkeypatch.setattr("reader_edge.verify.proof.prove", prove)
    result = invoke("verify", "--prompts", prompts, "-n", "4")
    assert result.stderr.endswith("Error: Far enough.\n")
    assert OUTPUT in result.stderr
    assert "The proof drafts all the same" in result.stderr


def test_no_draft_loads_nothing(runner: CliRunner, never_drafts: None, sources: Sequence[object], plain: Plain) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "20", "--no-draft", "--stats", *map(str, sources)])
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") == plain(PROMPT, 20).rstrip("\n")
    assert "(--no-draft). What was named to draft from is not loaded." in result.stderr
    assert "off: it was switched off" in result.stderr


@pytest.fixture(scope="module")
def real_engine(real_package: Path) -> Engine:
    engine = Engine.load(real_package, EngineConfig(is_calibrated=False))  # else this machine's speed decides on drafts
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


def test_it_knows_the_days_of_a_week_and_ends_its_turn(real_engine: Engine) -> None:
    """In fp32 each token of this answer leads the next best by half a nat, so eight bits say the same."""
    answer = real_engine.generate([{"role": "user", "content": "How many days are in a week?"}])
    assert answer.text == "A week is approximately 7 days."
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "question", ["How many days are in a week?", "Write the numbers from one to twenty as words, one a line."]
)
def test_drafted_and_plain_answers_are_the_same(real_engine: Engine, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    plain, drafted = (
        real_engine.generate(messages, GenerationConfig(max_tokens=80, is_drafted=is_drafted))
        for is_drafted in (False, True)
    )
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_tokens > 0
