"""What an engine refuses, each in one sentence; threads take turns, and a process ends whatever they are at."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime import DraftSources, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.cooperative_threads import CooperativeThread, yield_turn
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.errors import (
    ConfigError,
    HistoryError,
    IntegrityError,
    ManifestError,
    PackageError,
    PromptError,
    TokenizerError,
)
from reader_edge_runtime.package.manifest import file_entry

GREEDY = GenerationConfig(max_tokens=60, ignores_eos=True)


def test_empty_and_overlong_prompts_and_batches_with_one_are_refused(engine: Engine) -> None:
    with pytest.raises(PromptError, match="empty"):
        engine.generate("")
    with pytest.raises(PromptError, match="shorten"):
        engine.generate("word " * 5000)
    with pytest.raises(PromptError):
        engine.generate_batch(["# tar", ""], GREEDY)
    with pytest.raises(ConfigError, match="2 prompts came with 1 configs"):
        engine.generate_batch(["# tar", "# curl"], [GREEDY])


def test_what_is_no_list_of_prompts_and_a_truth_value_as_a_token_are_refused(engine: Engine) -> None:
    for given in (None, 3, "# tar"):
        with pytest.raises(PromptError, match="Several prompts are a list"):
            engine.generate_batch(given)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="The prompt is an empty list"):
        engine.generate([])
    with pytest.raises(PromptError, match="token id True"):
        engine.generate([True])
    few = GenerationConfig(max_tokens=2)
    assert (
        engine.generate_batch((text for text in ["# tar"]), few)[0].token_ids == engine.generate("# tar", few).token_ids
    )


def test_a_wrong_prompt_among_several_is_named_by_its_place(engine: Engine) -> None:
    wrong: Any = [3, "", [{"role": "user", "content": 3}]]
    for prompt in wrong:
        with pytest.raises(PromptError) as alone:
            engine.generate_batch([prompt])
        with pytest.raises(PromptError, match=r"^prompts\[1\]: ") as among:
            engine.generate_batch(["# tar", prompt, "# tar"])
        assert str(among.value) == f"prompts[1]: {alone.value}"
    several: Any = ["# tar", "# zip"]
    with pytest.raises(PromptError, match="generate_batch"):
        engine.generate(several)


def test_what_cannot_take_progress_is_refused(demo_folder: Path) -> None:
    for name in ("on_progress", "on_calibration"):
        callback: Any = {name: 3}
        with pytest.raises(ConfigError, match=f"{name} is 3, but must be a function of two numbers."):
            Engine.load(demo_folder, **callback)


@pytest.mark.parametrize("given", [3, b"history", [], "a\0b", "\ud800", "a" * 5000], ids=ascii)
def test_what_can_be_no_path_is_refused_in_one_sentence(engine: Engine, demo_folder: Path, given: Any) -> None:
    with pytest.raises(ConfigError, match="model is "):
        Engine.load(given)
    for name in ("history", "draft_model", "workspace"):
        with pytest.raises(ConfigError, match=f"{name} is "):
            DraftSources(**{name: given})
    with pytest.raises(ConfigError, match="A datastore is "):
        DraftSources(datastores=[given])
    for use in (engine.save_session, engine.load_session):
        with pytest.raises(ConfigError, match="path is "):
            use(given)


def test_a_number_of_too_many_digits_to_show_is_refused_wherever_it_stands(engine: Engine) -> None:
    huge: Any = 10**5000
    for prompt in (huge, [huge], [1, huge]):
        with pytest.raises(PromptError, match="too long to show"):
            engine.generate(prompt)
    with pytest.raises(PromptError, match="too long to show"):
        engine.generate_batch(huge)
    with pytest.raises(ConfigError, match="too long to show"):
        engine.generate("# tar", huge)
    for choice in ({"model": huge}, {"model": "", "sources": huge}):
        with pytest.raises(ConfigError, match="too long to show"):
            Engine.load(**choice)
    for source in ({"datastores": huge}, {"extra": huge}, {"extra": [huge]}):
        with pytest.raises(ConfigError, match="too long to show"):
            DraftSources(**source)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda folder: (folder / "model.onnx").write_bytes(b""), IntegrityError),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), IntegrityError),
        (lambda folder: (folder / "reader_edge.json").unlink(), ManifestError),
        (lambda folder: [path.unlink() for path in folder.iterdir()], ManifestError),
        (lambda folder: ([path.unlink() for path in folder.iterdir()], folder.rmdir()), PackageError),
    ],
)
def test_damaged_packages_are_refused(
    demo_folder: Path, tmp_path: Path, damage: object, error: type[Exception]
) -> None:
    folder = tmp_path / "package"
    shutil.copytree(demo_folder, folder)
    assert callable(damage)
    damage(folder)
    with pytest.raises(error):
        Engine.load(folder)


def test_tokenizer_of_another_model_is_refused(demo_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(demo_folder, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab.update({f"extra{i}": len(vocab) + i for i in range(10)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    manifest = json.loads((folder / "reader_edge.json").read_text())
    entry = file_entry(folder / "tokenizer.json")
    manifest["files"]["tokenizer.json"] = {"num_bytes": entry.num_bytes, "sha256": entry.sha256}
    (folder / "reader_edge.json").write_text(json.dumps(manifest))
    with pytest.raises(TokenizerError, match="another model"):
        Engine.load(folder)


def test_history_file_of_another_tokenizer_is_refused(demo_folder: Path, tmp_path: Path) -> None:
    HistoryFile(tmp_path / "history", bytes(32), 100, 100).append(np.array([1], np.int32))
    with pytest.raises(HistoryError, match="another tokenizer"):
        Engine.load(
            demo_folder,
            EngineConfig(is_calibrated=False, is_probed=False),
            sources=DraftSources(history=tmp_path / "history"),
        )


@pytest.mark.parametrize("name", ["smollm2:135m", "owner/name"])
def test_a_models_name_is_answered_with_how_a_package_of_it_is_made(name: str) -> None:
    sentence = (
        rf"No model package at '{name}': give .*export' \(`reader-edge export {name} FOLDER` writes one of that name\)"
    )
    with pytest.raises(PackageError, match=sentence):
        Engine.load(name)
    with pytest.raises(PackageError, match=r"No model package at 'tests/nosuch': .*'reader-edge export'\.$"):
        Engine.load("tests/nosuch")


def test_a_thread_runs_until_it_waits_and_goes_on_when_that_is_over() -> None:
    done, is_there = list[str](), list[bool]()

    def work() -> str:
        done.append("begun")
        assert yield_turn(lambda: bool(is_there))
        done.append("over")
        return "done"

    thread = CooperativeThread(work)
    thread.go_on()
    assert (done, thread.is_done, thread.can_go_on) == (["begun"], False, False)
    is_there.append(True)
    assert thread.can_go_on
    thread.go_on()
    assert (done, thread.is_done, thread.can_go_on, thread.result()) == (["begun", "over"], True, False, "done")


def test_what_is_raised_or_thrown_ends_the_work() -> None:
    thread = CooperativeThread(lambda: 1 / 0)
    thread.go_on()
    with pytest.raises(ZeroDivisionError):
        thread.result()
    thread = CooperativeThread(lambda: yield_turn(lambda: False))
    thread.go_on()
    thread.go_on(KeyboardInterrupt("now"))
    with pytest.raises(KeyboardInterrupt, match="now"):
        thread.result()
    assert not yield_turn(lambda: False)


def test_an_interrupt_comes_when_the_work_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = CooperativeThread(lambda: "done")
    stopped = thread._has_stopped

    class Interrupted:
        num_left = 2

        def acquire(self) -> None:
            if self.num_left:
                self.num_left -= 1
                raise KeyboardInterrupt
            stopped.acquire()

        def release(self) -> None:
            stopped.release()

    monkeypatch.setattr(thread, "_has_stopped", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        thread.go_on()
    assert thread.result() == "done"


DECODING = """
import threading, time
from reader_edge_runtime import Engine, GenerationConfig

engine = Engine.load({package!r})

def ask():
    while True:
        engine.generate("# tar", GenerationConfig(max_tokens=400, ignores_eos=True))

threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
while not engine.decoder.running:
    time.sleep(0.01)
"""


@pytest.mark.long
def test_a_process_ends_in_order_while_daemon_threads_decode(demo_folder: Path) -> None:
    command = [sys.executable, "-c", DECODING.format(package=str(demo_folder))]
    ended = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    assert [(each.returncode, each.stderr) for each in ended] == [(0, "")] * 3
