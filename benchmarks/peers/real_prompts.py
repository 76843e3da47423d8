"""Recorded conversations -> chat prompts of several categories, for real models.

    python -m benchmarks.peers.real_prompts FOLDER OUT.jsonl --tokenizer TOKENIZER [--each 8] [--most 1500]
        [--without FILE] [--first-turns] [--join 1]

FOLDER holds recordings (the format of `reader-edge bench replay`) whose inputs are marked up with <|role|> and <|end|>.
Of each category the first `--each` conversations that fit are taken, none picked by hand, none in two categories, and
none that an earlier OUT, `--without`, has:

- agent: as much of a conversation, recorded answers included, as ends with a user and fits. What a tool returned stands
  as the user's, since chat templates differ in tools.
- chat: two turns, {"turns": [...]}; the model under test gives the answers in between. --first-turns: one.
- code, maths, rag, summaries: one question each. --join: passages of so many recordings before the question of the
  first, texts of so many under one instruction.
- questions: those of the rag prompts, without their passages.
- short: first turns of chat, rag and summaries whose recorded answer has 10 to 60 tokens.
"""

import argparse
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.fidelity.recorded_chats import Message, recorded_messages
from reader_edge.models.model_source import load_tokenizer
from reader_edge_runtime.atomic_file import new_file
from reader_edge_runtime.text.tokenizer import Tokenizer

QUESTION = re.compile(r"\n\nQuestion: (.+)\Z", re.DOTALL)
# What stands before the texts of a recording, they, and what stands behind them.
RAG_PARTS = re.compile(r"()(.+)(\n\nQuestion: .+)\Z", re.DOTALL)
SUMMARY_PARTS = re.compile(r"(.+### Input:\n)(.+)(\n\n### Response:\s*)\Z", re.DOTALL)
SHORT = range(10, 61)
TEMPLATE_TOKENS = 8  # what a chat template adds to a message, about

Record = dict[str, Any]


class Converter:
    """Prompts from a folder of recordings.

    most: tokens that a prompt may have, what a template adds included. num_turns: of a chat; None for all. num_joined:
    recordings whose texts a prompt of rag or summaries has.
    """

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, most: int, num_turns: int | None = None, num_joined: int = 1
    ) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._most = most
        self._num_turns = num_turns
        self._num_joined = num_joined

    def categories(self) -> dict[str, Iterator[Record]]:
        """Every prompt that fits, by category, in the order of the recordings."""
        return {
            "agent": self._prompts(self._beginning, "agent-airline"),
            "chat": self._prompts(self._turns, "chat-qwen2.5-7b"),
            "code": self._prompts(self._first, "code-reasoning-phi3.5-mini"),
            "maths": self._prompts(self._first, "math-phi3.5-mini", "math-hard-phi3.5-mini"),
            "rag": self._texts(RAG_PARTS, "rag"),
            "summaries": self._texts(SUMMARY_PARTS, "summarization"),
            "questions": self._prompts(self._question, "rag"),
            "short": self._prompts(self._short, "chat-qwen2.5-7b", "rag", "summarization"),
        }

    def _prompts(self, convert: Callable[[Record], Record | None], *names: str) -> Iterator[Record]:
        """Prompts of several recordings in turn."""
        files = [(self._folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n") for name in names]
        for line in itertools.chain.from_iterable(itertools.zip_longest(*files)):
            record = json.loads(line) if line else None
            prompt = convert(record) if record is not None else None
            if record is not None and prompt is not None:
                yield {**prompt, "id": record["id"], "licence": record["licence"], "source": record["source"]}

    def _texts(self, parts: re.Pattern[str], name: str) -> Iterator[Record]:
        """Prompts about texts, those of several recordings in one."""
        if self._num_joined == 1:
            yield from self._prompts(self._first, name)
            return
        each = self._prompts(lambda record: {"messages": recorded_messages(record["turns"][0]["input"])}, name)
        while len(group := list(itertools.islice(each, self._num_joined))) == self._num_joined:
            found = [parts.match(prompt["messages"][-1]["content"]) for prompt in group]
            if all(found):
                before, texts, behind = zip(*(match.groups() for match in found if match), strict=True)
                messages = [{"role": "user", "content": before[0] + "\n\n".join(texts) + behind[0]}]
                if self._fits(messages):
                    yield {**group[0], "messages": messages}

    def _beginning(self, record: Record) -> Record | None:
        messages: list[Message] = []
        longest: list[Message] = []
        for turn in record["turns"]:
            messages += recorded_messages(turn["input"])
            if not self._fits(messages):
                break
            longest = list(messages)
            messages.append({"role": "assistant", "content": turn["output"]})
        return {"messages": longest} if longest else None

    def _turns(self, record: Record) -> Record | None:
        turns = [recorded_messages(turn["input"])[-1]["content"] for turn in record["turns"][: self._num_turns]]
        answers = [turn["output"] for turn in record["turns"][: len(turns) - 1]]
        is_fitting = self._fits([{"role": "", "content": text} for text in (*turns, *answers)])
        return {"turns": turns} if is_fitting else None

    def _first(self, record: Record) -> Record | None:
        messages = recorded_messages(record["turns"][0]["input"])
        return {"messages": messages} if self._fits(messages) else None

    def _question(self, record: Record) -> Record | None:
        found = QUESTION.search(recorded_messages(record["turns"][0]["input"])[-1]["content"])
        return {"messages": [{"role": "user", "content": found[1]}]} if found else None

    def _short(self, record: Record) -> Record | None:
        answer = self._tokenizer.encode(record["turns"][0]["output"], adds_special_tokens=False)
        return self._first(record) if len(answer) in SHORT else None

    def _fits(self, messages: list[Message]) -> bool:
        texts = [message["content"] for message in messages]
        return sum(map(len, self._tokenizer.encode_batch(texts))) + TEMPLATE_TOKENS * len(texts) <= self._most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", required=True, help="a model's tokenizer.json, its folder or package")
    parser.add_argument("--each", type=int, default=8, help="prompts of a category")
    parser.add_argument("--most", type=int, default=1500, help="tokens of a prompt")
    parser.add_argument("--without", type=Path, help="an earlier OUT, none of whose conversations is taken again")
    parser.add_argument("--join", type=int, default=1, help="recordings whose texts make a prompt of rag or summaries")
    parser.add_argument("--first-turns", action="store_true", help="of chats, leave out later turns")
    options = parser.parse_args()
    other = options.without.read_text(encoding="utf-8").splitlines() if options.without else []
    left_out = {json.loads(line)["id"] for line in other}
    num_turns = 1 if options.first_turns else None
    converter = Converter(options.folder, load_tokenizer(options.tokenizer), options.most, num_turns, options.join)
    taken: dict[str, str] = {}
    for category, prompts in converter.categories().items():
        new = (prompt for prompt in prompts if prompt["id"] not in taken.keys() | left_out)
        first = {each["id"]: json.dumps({"category": category, **each}) for each in itertools.islice(new, options.each)}
        taken |= first
        print(f"{category}: {len(first)}")
    with new_file(options.out) as file:
        file.write(("\n".join(taken.values()) + "\n").encode())


if __name__ == "__main__":
    main()
