"""Recorded sessions of coding agents, and what is made of them."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.agents.clock import Recorded, TurnTime, run_turn
from benchmarks.agents.llama_cpp import ARMS, token_seconds
from benchmarks.agents.record import chained
from benchmarks.agents.recordings import long_turns
from benchmarks.agents.replay import Replayed, replay, workspace_index
from benchmarks.agents.session_script import PAGE, TASK, make_project, session_script
from benchmarks.agents.sessions import FOLDER, KINDS, Turn, read_session
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge_runtime import Engine
from reader_edge_runtime.measuring.pass_cost import PassCost
from tests.reader_edge.server.clients.edit_script import Json
from tests.scripted_target import BEGIN, END

FLAT = PassCost(1, (64, 512), (1, 8, 16), np.full((2, 3), 0.1))  # a wide pass takes what a narrow one does


def conversation(tool: str, task: str) -> str:
    listed = f'{{"type": "function", "function": {tool}}}'
    return f"{BEGIN}system\n<tools>\n{listed}\n</tools>{END}\n{BEGIN}user\n{task}{END}\n{BEGIN}assistant\n"


def test_a_session_calls_the_tools_that_a_client_has(tmp_path: Path) -> None:
    make_project(tmp_path)
    tool = '{"name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}'
    text = conversation(tool, TASK.format(path=tmp_path))
    first = session_script(text)
    assert f'{{"name": "Bash", "arguments": {{"command": "cd {tmp_path} && ls -R ."}}}}' in first
    result = f"{END}\n{BEGIN}user\n<tool_response>\n.\n</tool_response>{END}\n{BEGIN}assistant\n"
    assert f"cat {tmp_path / PAGE}" in session_script(text + first + result)
    assert "<tool_call>" not in session_script(text + (first + result) * (len(KINDS) - 1))


def test_what_a_script_continues_inside_drafts_is_no_turn() -> None:
    head, rest = f"{BEGIN}user\n/srv/x{END}\n{BEGIN}assistant\n", f"{END}\n{BEGIN}user\nDone.{END}\n{BEGIN}assistant\n"
    answer = "Now.\n<tool_call>\n{}\n</tool_call>"
    resent = answer.replace("Now.\n", "Now.\n\n")
    sent = [(head, answer), (f"{head}Now.\n<tool_call> some draft{rest}", "None."), (head + resent + rest, "The end.")]
    assert chained(sent, "/srv/x") == [
        {"input": head.replace("/srv/x", "/home/user"), "output": answer, "resent": resent},
        {"input": rest, "output": "The end."},
    ]
    with pytest.raises(ValueError, match="earlier part"):
        chained([*sent, ("something else", "The end.")], "/srv/x")


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_recorded_sessions_are_replayed_whole(client: str, engine: Engine) -> None:
    turns = read_session(FOLDER / f"{client}.jsonl", engine.tokenizer)
    assert [turn.kind for turn in turns] == [*KINDS]
    short = read_session(FOLDER / f"{client}.jsonl", engine.tokenizer, is_short=True)
    assert len(short) == len(turns) - 1
    assert len(short[-1].prompt) < 0.6 * len(turns[-1].prompt)
    found = list(replay(short[:3], FLAT, workspace_index(engine.tokenizer)))
    for turn, each in zip(short, found, strict=False):
        assert (each.context, each.num_tokens) == (len(turn.prompt), len(turn.answer))
        assert each.plain_s == pytest.approx(0.1 * each.num_tokens)
        assert each.perfect_s <= each.drafted_s
    whole = Replayed.total(found)
    assert whole.num_steps < 0.6 * whole.num_tokens
    assert whole.drafted_s < whole.plain_s


def test_recorded_answers_are_counted_behind_long_texts_alone() -> None:
    """Questions follow each other in one text until it is full; requests of several turns are texts of their own."""

    def recorded(*turns: tuple[int, int]) -> RecordedRequest:
        return RecordedRequest("x", [RecordedTurn([1] * prompt, [2] * output) for prompt, output in turns])

    questions = [recorded((30, 10)) for _ in range(5)]
    assert [len(turn.prompt) for turn in long_turns(questions, 60, 120)] == [70, 110, 70]
    session = recorded((50, 10), (20, 10), (50, 10), (1, 1))
    turns = list(long_turns([questions[0], session, questions[0]], 60, 120))
    assert [(turn.kind, turn.prompt, turn.answer) for turn in turns] == [
        ("x", [1] * 50 + [2] * 10 + [1] * 20, [2] * 10)
    ]


def test_a_real_models_passes_give_the_recorded_answer(demo_folder: Path) -> None:
    with Engine.load(demo_folder, is_calibrated=False) as engine:
        recorded = Recorded(engine.decoder.target)
        turn = Turn(
            "edit", engine.encode_prompt("# tar\n\n> Archiving utility."), engine.encode_prompt("no such answer")
        )
        for is_drafted in (False, True):
            assert run_turn(engine, recorded, turn, len(turn.answer), is_drafted).num_tokens == len(turn.answer)
        recorded.text = []
        assert list(engine.generate(turn.prompt, max_tokens=4, temperature=0).token_ids) != turn.answer[:4]


def test_a_table_of_passes_may_not_have_wider_ones_that_take_less(tmp_path: Path) -> None:
    from benchmarks.agents.pass_table import read_table

    values: Json = {"pasts": [8], "widths": [1, 4], "seconds": [[0.2, 0.1]]}
    (tmp_path / "table.json").write_text(str(values).replace("'", '"'))
    assert read_table(tmp_path / "table.json").seconds.tolist() == [[0.1, 0.1]]


def test_what_a_forcing_grammar_takes_is_no_part_of_a_peers_speed() -> None:
    seconds = {
        "free": (0.010, 0.010),
        "plain": (0.013, 0.014),
        "ngram-simple": (0.008, 0.016),
        "ngram-mod": (0.013, 0.014),
    }
    served = [TurnTime(arm, turn, 0.0, each, 0) for arm, of in seconds.items() for turn, each in enumerate(of)]
    assert ARMS == ("plain", "ngram-simple", "ngram-mod")
    np.testing.assert_allclose(token_seconds(served, 2), [[0.010, 0.010], [0.005, 0.012], [0.010, 0.010]])
