"""Rules of `run` and `serve`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge.entry_points import added_commands
from reader_edge.remote import remote_engine
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server.settings import ServerSettings
from reader_edge.terminal.model_text import deviation_sentence
from reader_edge_lossy.relaxed import Relaxed
from reader_edge_lossy.views import Views
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.draft.conftest import DraftServer, serving
from tests.reader_edge.server.ollama_requests import lines, whole


def lossy_run(*arguments: str, rule: str = "relaxed", text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["run", "--rule", rule, *arguments, "--no-calibrate"], text, catch_exceptions=False)


def test_an_answer_ends_with_what_it_gave_up() -> None:
    result = lossy_run("-p", "# tar", "-n", "30", rule="relaxed:2:1")
    assert result.exit_code == 0
    assert "Lossy (relaxed: gap 2.0, budget 1.0): " in result.stderr
    assert " of 30 tokens are not the model's choice" in result.stderr
    assert "Lossy" not in result.stdout


def test_json_has_the_meter() -> None:
    result = lossy_run("-p", "# tar", "-n", "10", "--json", "--stats")
    printed = json.loads(result.stdout)
    deviation = printed["deviation"]
    assert printed["stats"]["perplexity"] > 1
    assert deviation["figures"] == {"gap": 0.69, "budget": 0.02}
    assert deviation["num_tokens"] == 10


def test_a_chat_goes_on_in_its_session(tmp_path: Path) -> None:
    session = str(tmp_path / "session")
    first = lossy_run("-p", "# tar", "-n", "4", "--session", session)
    assert first.exit_code == 0
    refused = CliRunner().invoke(main, ["run", "-p", "# tar", "--session", session, "--no-calibrate"])
    assert refused.exit_code == 1
    assert "is a lossy session, which `run --rule` goes on with" in refused.stderr
    assert lossy_run("-p", "# tar", "-n", "4", "--session", session).exit_code == 0


def test_lines_of_standard_input_are_prompts_to_answer() -> None:
    assert "Lossy (" in lossy_run("-p", "-", "-n", "4", text="# tar\n").stderr
    refused = lossy_run("--json", "-p", "")
    assert refused.exit_code == 2
    assert "The prompt is empty" in refused.stderr


def test_views_say_how_far_they_are_from_the_whole_prompt() -> None:
    prompt = ("-p", "tar and zip, " * 40 + "# tar", "-n", "12", "--json")
    mixed = json.loads(lossy_run(*prompt, rule="views:64:0.7").stdout)
    assert mixed["deviation"]["rule"] == "views"
    assert mixed["deviation"]["figures"] == {"context": 64, "weight": 0.7}
    exact = CliRunner().invoke(main, ["run", *prompt, "--no-calibrate"], catch_exceptions=False)
    assert json.loads(lossy_run(*prompt, rule="views:64:0").stdout)["text"] == json.loads(exact.stdout)["text"]


def test_views_are_sampled_and_relaxed_answers_are_not() -> None:
    sampled = ("-p", "# tar", "-n", "12", "-t", "0.9", "--seed", "4")
    exact = CliRunner().invoke(main, ["run", *sampled, "--no-calibrate"], catch_exceptions=False)
    assert lossy_run(*sampled, rule="views:256:0").stdout == exact.stdout
    assert exact.stdout != CliRunner().invoke(main, ["run", *sampled[:4], "--no-calibrate"]).stdout
    refused = lossy_run(*sampled)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Lossy answers are greedy" in refused.stderr


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("exact", "'exact' is no rule that is installed: take "),
        ("relaxed:much", "'relaxed:much' has what is no number: give relaxed:GAP:BUDGET."),
        ("big-little:2:3", "'big-little:2:3' has too many figures: give big-little:DISTANCE."),
        *((f"relaxed:{each}", "has what is no number: give") for each in ("٣", "1_0", " 0.5", "+1", ".5", "nan", "")),
        ("relaxed:-1", "gap is -1.0, but must be from 0 to 100"),
        ("views:99.5", "context is 99.5, but must be a whole number"),
    ],
)
def test_wrong_rules_are_refused_in_a_sentence(rule: str, sentence: str) -> None:
    refused = lossy_run("-p", "# tar", rule=rule)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert sentence in refused.stderr


def test_a_server_of_exact_answers_and_a_comparison_take_no_rule() -> None:
    for others in (("--compare",), ("--server", "http://localhost:1")):
        refused = CliRunner().invoke(main, ["run", "--rule", "relaxed", "-p", "# tar", *others])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--rule" in refused.stderr


def test_rules_whose_folder_is_gone_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_runtime.plug_ins.find_spec", lambda name: None)
    refused = lossy_run("-p", "# tar")
    assert refused.exit_code == 2
    assert "'relaxed' is no rule that is installed: take none." in refused.stderr
    assert added_commands(()) == {}


def test_what_a_model_usually_repeats_is_shown_where_it_is_known() -> None:
    fields = {"rule": "relaxed", "figures": {"gap": 1.0}, "num_changed": 2, "num_tokens": 8, "nats_per_token": 0.01}
    fields |= {"repeated_4grams": 0.25, "usual_repeated_4grams": 0.125}
    assert deviation_sentence(fields) == (
        "Lossy (relaxed: gap 1.0): 2 of 8 tokens are not the model's choice, 0.0100 nats a token given up; 25.0% of "
        "4-grams repeated (usually 12.5%)."
    )
    assert "(usually not known: `reader-edge warm` finds out)" in deviation_sentence(
        fields | {"usual_repeated_4grams": None}
    )


def test_without_a_prompt_it_chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PromptInput, "read", lambda prompt_input: None)
    session = str(tmp_path / "session")
    result = lossy_run("-n", "4", "--session", session, text="# tar\n/bye\n")
    assert result.exit_code == 0
    assert "Lossy (relaxed" in result.stderr
    assert lossy_run("-n", "4", text="/bye\n").exit_code == 0
    refused = lossy_run("--json")
    assert refused.exit_code == 2
    assert "--json and --compare need a prompt" in refused.stderr


TURNS = [{"role": "user", "content": "# tar"}]
URL = "http://localhost:8000"


@pytest.fixture(scope="module")
def lossy(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("chat") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    engine = Engine.load(package.folder, EngineConfig(is_calibrated=False), rule=Relaxed(20.0, 20.0))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


@pytest.fixture
def served(lossy: Engine) -> Iterator[Served]:
    make_as_new(lossy)
    engine = AsyncEngine(lossy)
    yield Served(engine, ServerSettings("demo"))
    asyncio.run(engine.close(cancels=True))


@pytest.fixture
def draft_server(served: Served) -> Iterator[DraftServer]:
    with serving(served.app) as server:
        yield server


def test_usage_of_completions_has_the_meter_of_each_choice(served: Served) -> None:
    deviation = served.complete(max_tokens=6, prompt=["# tar", "# zip"])["usage"]["deviation"]
    assert [each["num_tokens"] for each in deviation] == [6, 6]
    assert {each["rule"] for each in deviation} == {"relaxed"}


def test_usage_of_responses_has_it_too(served: Served) -> None:
    body = {"model": "demo", "input": "# tar", "max_output_tokens": 16, "temperature": 0}
    assert served.post("/v1/responses", body).json()["usage"]["deviation"][0]["num_tokens"] == 16


CLIENTS = [
    ("/v1/completions", {"prompt": "# tar", "max_tokens": 6}),
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 6}),
    ("/v1/responses", {"input": "# tar", "max_output_tokens": 16}),
    ("/api/generate", {"prompt": "# tar", "options": {"num_predict": 6}, "stream": False}),
    ("/api/chat", {"messages": TURNS, "options": {"num_predict": 6, "repeat_penalty": 1}, "stream": False}),
]


def answer_to(served: Served, path: str, body: dict[str, Any], **sampling: Any) -> Any:
    """The answer, without the names and times that differ each time, or the sentence of a refusal."""
    fields: dict[str, Any] = {"model": "demo", **body}
    if path.startswith("/api/"):
        fields["options"] = fields["options"] | sampling
    else:
        fields |= sampling
    response = served.post(path, fields)
    found = response.json()
    if response.status_code != 200:
        return found["error"] if isinstance(found["error"], str) else found["error"]["message"]
    if path == "/v1/responses":
        return found["output"][0]["content"], found["temperature"]
    return found.get("choices") or found.get("message") or found["response"]


@pytest.mark.parametrize(("path", "body"), CLIENTS)
def test_without_a_temperature_answers_are_greedy(
    served: Served, lossy: Engine, path: str, body: dict[str, Any]
) -> None:
    unnamed = answer_to(served, path, body)
    assert "Lossy" not in unnamed
    make_as_new(lossy)
    assert answer_to(served, path, body, temperature=0) == unnamed
    make_as_new(lossy)
    assert answer_to(served, path, body, temperature=0, top_k=3, top_p=0.5, min_p=0.1) == unnamed


@pytest.mark.parametrize(("path", "body"), CLIENTS)
@pytest.mark.parametrize("sampling", [{"temperature": 1}, {"temperature": 0, "presence_penalty": 1}])
def test_sampled_requests_are_refused(
    served: Served, path: str, body: dict[str, Any], sampling: dict[str, Any]
) -> None:
    refused = answer_to(served, path, body, **sampling)
    assert "Lossy answers are greedy" in refused
    assert "send temperature 0, without penalties and biases. Of the rules `views` alone takes them." in refused


def test_views_are_sampled_where_no_temperature_is_named(demo_folder: Path) -> None:
    views = Engine.load(demo_folder, EngineConfig(is_calibrated=False), rule=Views(64))
    engine = AsyncEngine(views)
    fields = {"model": "demo", "prompt": "# tar", "max_tokens": 12, "n": 4, "seed": 1}
    choices = Served(engine, ServerSettings("demo")).post("/v1/completions", fields).json()["choices"]
    assert len({choice["text"] for choice in choices}) > 1
    asyncio.run(engine.close())


def test_a_device_gets_the_deviation(lossy: Engine, draft_server: DraftServer, held_out_texts: list[str]) -> None:
    prompt = held_out_texts[0][:300]
    with RemoteEngine(URL, drafts="none", connect=draft_server.connect) as remote:
        result = remote.generate(prompt, GenerationConfig(60))
        *others, last = remote.stream(TURNS, GenerationConfig(60))
    make_as_new(lossy)
    alone = lossy.generate(prompt, GenerationConfig(60))
    assert (result.token_ids, result.deviation) == (alone.token_ids, alone.deviation)
    assert int(str(result.deviation["num_changed"])) > 0
    assert last.deviation["num_tokens"] == 60
    assert not any(chunk.deviation for chunk in others)


def test_who_runs_it_from_afar_reads_it(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "connected", draft_server.connect)
    run = ["run", "--server", URL, "-p", "# tar", "-n", "9", "--drafts", "none"]
    output = CliRunner().invoke(main, run, catch_exceptions=False)
    assert " of 9 tokens are not the model's choice" in output.stderr
    assert "Lossy" not in output.stdout
    printed = CliRunner().invoke(main, [*run, "--json"], catch_exceptions=False)
    assert json.loads(printed.stdout)["deviation"]["num_tokens"] == 9


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/generate", {"prompt": "# tar"}), ("/api/chat", {"messages": TURNS})]
)
def test_ollama_s_last_object_has_the_meter(served: Served, path: str, fields: dict[str, Any]) -> None:
    options = {"num_predict": 6, "temperature": 0, "top_k": 0, "top_p": 1}
    body = {"model": "demo", "options": options, **fields}
    *others, last = lines(served, path, body)
    for answer in (last, whole(served, path, body)):
        assert (answer["deviation"]["rule"], answer["deviation"]["num_tokens"]) == ("relaxed", 6)
    assert not any("deviation" in each for each in others)


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/completions", {"prompt": "# tar"}), ("/v1/chat/completions", {"messages": TURNS})]
)
@pytest.mark.parametrize("includes_usage", [False, True])
def test_each_choice_ends_with_the_meter(
    served: Served, path: str, fields: dict[str, Any], includes_usage: bool
) -> None:
    options = {"stream": True, "stream_options": {"include_usage": includes_usage}}
    body = {"model": "demo", "max_tokens": 6, "n": 2, "temperature": 0, **options, **fields}
    text = served.post(path, body).text
    pieces = [json.loads(each.removeprefix("data: ")) for each in text.split("\n\n") if each and "[DONE]" not in each]
    choices = [choice for piece in pieces for choice in piece["choices"]]
    ended = [choice for choice in choices if choice["finish_reason"]]
    assert [choice["deviation"]["num_tokens"] for choice in ended] == [6, 6]
    assert not any("deviation" in choice for choice in choices if choice not in ended)
    assert ("deviation" in (pieces[-1].get("usage") or {})) is includes_usage


def test_serve_takes_a_rule(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[AsyncEngine] = []
    monkeypatch.setattr("reader_edge.server.app.make_app", lambda engine, settings: served.append(engine))
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, engine: None)
    options = ["--port", "0", "--no-calibrate", "--rule", "relaxed:1:0.5"]
    assert CliRunner().invoke(main, ["serve", str(demo_folder), *options]).exit_code == 0
    assert served[0].engine.rule == Relaxed(1.0, 0.5)
