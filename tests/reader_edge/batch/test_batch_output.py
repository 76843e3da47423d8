"""The output of a batch: nothing is lost or answered twice, and a file that is no output is left as it is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

from reader_edge.cli import main
from reader_edge_runtime.decoding.decoder import Decoder
from tests.reader_edge.batch.conftest import REQUESTS, Files, assert_refused, request
from tests.small_disk import small_disk


@pytest.mark.parametrize("num_bytes", [0, 1, 30, 600, 601, -1, -2, -200])
def test_it_goes_on_where_an_output_was_cut(files: Files, answered: Files, num_bytes: int) -> None:
    files.write(*REQUESTS)
    cut = answered.out.read_bytes()[:num_bytes]
    files.out.write_bytes(cut)
    assert files.run().exit_code == 0
    assert files.texts() == answered.texts()
    kept = cut[: cut.rfind(b"\n") + 1]
    assert files.out.read_bytes()[: len(kept)] == kept


def test_what_is_done_needs_no_model(files: Files) -> None:
    files.write(*REQUESTS[:2])
    files.run()
    before = files.out.read_bytes()
    assert files.run("no/such/model").exit_code == 0
    assert files.out.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"my diary", b"my diary\n", b"{}\n", b'{"id": 1, "custom_id": [1]}\n', b"[" * 100_000 + b"\n", b"\xff\n", b"x"],
)
def test_a_file_that_is_no_output_is_left_as_it_is(files: Files, content: bytes) -> None:
    files.write(*REQUESTS[:1])
    files.out.write_bytes(content)
    assert_refused(files.run(), f"'{files.out}' ")
    assert files.out.read_bytes() == content


def test_an_output_of_another_input_is_refused_and_left_as_it_is(files: Files) -> None:
    files.write(*REQUESTS[:2])
    files.run()
    before = files.out.read_bytes()
    for other in ([REQUESTS[0]], [REQUESTS[0], request(1, prompt="# git")], REQUESTS[5:]):
        files.write(*other)
        assert_refused(files.run(), f"'{files.out}' answers a request")
    files.write(*REQUESTS[:2])
    files.out.write_bytes(before + before)
    assert_refused(files.run(), f"'{files.out}' answers 'request")
    assert files.out.read_bytes() == before + before


def test_a_foreign_line_without_an_end_is_left_as_it_is(files: Files) -> None:
    files.write(*REQUESTS[:1])
    foreign = b'{"id": "batch_req_zzz", "custom_id": "zzz", "response": {"status_code": 200}}'
    files.out.write_bytes(foreign)
    assert_refused(files.run(), f"'{files.out}' answers a request 'zzz' that the input has not")
    assert files.out.read_bytes() == foreign


def test_one_file_is_not_input_and_output_and_none_is_written_twice_at_once(files: Files, tmp_path: Path) -> None:
    files.write(*REQUESTS[:1])
    given = files.given.read_bytes()
    result = CliRunner().invoke(main, ["batch", str(files.given), str(files.given)])
    assert_refused(result, f"'{files.given}' is the input too", 2)
    assert files.given.read_bytes() == given
    with FileLock(f"{files.out}.lock"):
        assert_refused(files.run(), f"Another process writes '{files.out}'")
        link = tmp_path / "link"
        link.symlink_to(files.out)
        result = CliRunner().invoke(main, ["batch", str(files.given), str(link)])
        assert_refused(result, f"Another process writes '{link}'")
    files.out = tmp_path / "no" / "folder"
    sentence = f"Invalid value for 'OUTPUT': There is no folder '{files.out.parent}'."
    assert_refused(files.run(), sentence, 2)


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(files: Files) -> None:
    files.write(*REQUESTS)
    sentence = "cannot be written (File too large): see to its disk, then the same command resumes."
    with small_disk(2000):
        assert_refused(files.run(), f"'{files.out}' {sentence}")
    assert 0 < len(files.answers()) < len(REQUESTS)
    assert files.run().exit_code == 0
    assert len(files.answers()) == len(REQUESTS)


def test_an_interrupted_batch_is_resumed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(*REQUESTS)
    step, num_steps = Decoder.step, 0

    def interrupted_step(self: Decoder) -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "step", interrupted_step)
        result = files.run("--max-batch", "2")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")
    assert len(files.answers()) < len(REQUESTS)
    assert files.run().exit_code == 0
    assert len(files.answers()) == len(REQUESTS)


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups")
def test_kills_lose_and_repeat_nothing() -> None:
    command = [sys.executable, "-m", "tests.durability.kill_batches", "--kills", "2", "--requests", "12"]
    # A source tree is not installed: the command must be given where pytest found the packages.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 kills")
