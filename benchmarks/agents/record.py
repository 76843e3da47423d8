"""Records sessions of unmodified coding agents, turn by turn, with `session_script` in the place of a model.

    python -m benchmarks.agents.record FOLDER [CLIENT ...]

Clients are installed into FOLDER, as `tests.reader_edge.server.clients.try_agents` does. Writes
benchmarks/agents/sessions/CLIENT.jsonl, which `bench replay` reads: what the template made of each request behind the
one before, and the answer. A client's own instructions are its maker's: in their place stand as many characters, 20,000
at most, of this repository's pages. The exit code is 1 where a session did not come to its end.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.agents.session_script import TASK, TEST, make_project, session_script
from benchmarks.agents.sessions import FOLDER, KINDS
from reader_edge.server.app import make_app
from reader_edge.server.listening import listen, open_socket
from reader_edge.server.settings import ServerSettings
from reader_edge.terminal.log import log_to_stderr
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.clients.recorded import HOME
from tests.reader_edge.server.clients.serve_script import MODEL
from tests.reader_edge.server.clients.try_agents import URL, installed, scripted_server, tried
from tests.scripted_target import BEGIN, END, ROOT, scripted_engine

_CLIENTS = ("claude", "codex", "opencode")
_HEAD = re.compile(rf"^{re.escape(BEGIN)}system\n(.*?){re.escape(END)}", re.DOTALL)
_MOST = 20_000  # characters of instructions that are kept the length of
_MARK = 12  # characters by which an answer's end is known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("clients", nargs="*", default=_CLIENTS)
    given = parser.parse_args()
    return max(_recorded(name, given.folder.resolve()) for name in given.clients)


def _recorded(name: str, folder: Path) -> int:
    """Run a session and write it down; 1 where it broke off."""
    commands, version = installed(name, folder)
    work = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    make_project(work / "project")
    with tempfile.TemporaryDirectory() as place:
        record = Path(place) / "record.jsonl"
        with scripted_server(record, "benchmarks.agents.record"):
            note = tried(name, commands, URL, MODEL, TASK.format(path=work / "project"), work)
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
    pairs = [(each["prompt"], each["answer"]) for each in map(json.loads, lines)]
    prompts = [pair for pair in pairs if "in the project at" in pair[0] and "<tools>" in pair[0]]
    turns = chained(prompts, str(work))
    is_whole = (work / "project" / TEST).exists() and len(turns) == len(KINDS) and not note
    print(f"{name} {version}: {len(turns)} turns, {'whole' if is_whole else f'broke off: {note} ({work})'}")
    FOLDER.mkdir(exist_ok=True)
    line = {"task": name, "client": name, "version": version, "turns": turns}
    (FOLDER / f"{name}.jsonl").write_text(json.dumps(line, ensure_ascii=False) + "\n", "utf-8")
    return int(not is_whole)


def chained(prompts: list[tuple[str, str]], work: str) -> list[dict[str, str]]:
    """Prompts and answers as turns of one text; `resent` is an answer as the next prompt has it, where it differs.

    The script is also called at nodes of drafts, whose texts leave an answer in its midst: those are left out. Raises
    ValueError for a prompt that changes what came before the last answer.
    """
    turns, before, answer = list[dict[str, str]](), "", ""
    for prompt, following in prompts:
        if not prompt.startswith(before):
            raise ValueError("A client changed an earlier part of its prompt.")
        resent, _, rest = prompt[len(before) :].partition(END) if turns else ("", "", prompt)
        if turns and resent.rstrip()[-_MARK:] != answer.rstrip()[-_MARK:]:
            continue
        if turns and resent != answer:
            turns[-1]["resent"] = resent.replace(work, HOME)
        shown = f"{END}{rest}" if turns else _with_pages(prompt)
        turns.append({"input": shown.replace(work, HOME), "output": following.replace(work, HOME)})
        before, answer = prompt, following
    return turns


def _with_pages(prompt: str) -> str:
    """A prompt with this repository's pages in place of the client's instructions."""
    pages = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "decisions").glob("*.md")))
    return _HEAD.sub(lambda found: f"{BEGIN}system\n{pages[: min(len(found[1]), _MOST)]}{END}", prompt, count=1)


def serve(port: str, record: str) -> None:
    """The server that clients ask."""

    def script(text: str) -> str:
        answer = session_script(text)
        file.write(json.dumps({"prompt": text, "answer": answer}) + "\n")
        file.flush()
        return answer

    with (
        tempfile.TemporaryDirectory() as folder,
        open(record, "a", encoding="utf-8") as file,
        log_to_stderr("info", "text"),
        open_socket("127.0.0.1", int(port)) as place,
    ):
        engine = AsyncEngine(scripted_engine(script, Path(folder)))
        listen(make_app(engine, ServerSettings(MODEL)), place, engine)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].isdigit():
        serve(*sys.argv[1:])
    else:
        sys.exit(main())
