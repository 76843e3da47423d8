"""Answers held to JSON schemas: is each one valid, is the drafted one the plain one, and what do the grammars cost?

    python -m tests.durability.grammar_proof PACKAGE [--schemas 1000] [--suite FOLDER] [--tokens 160] [--seed 0]

Each schema is answered once drafted and once plainly, every other one sampled at temperature 1, with log-probabilities;
every tenth prompt also without a schema. --suite takes the schemas of a folder of JSON files instead: each file is a
schema, or a list of objects with one, as in the JSON Schema Test Suite, which jsonschema's source distribution holds
(`pip download --no-binary jsonschema --no-deps jsonschema`, then its `json/tests/draft2020-12`). Schemas below a folder
draft7 are of that draft; what refers to schemas elsewhere is left to be refused.
Exit code 1 where an answer that was not cut by its length is not valid JSON of its schema, or a drafted answer or one
of its log-probabilities is another than the plain one's, and where a refusal is no single sentence.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema

from reader_edge_runtime import Engine, GenerationConfig, GenerationStats, Grammar, SamplingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.conversation import Prompt

_FREE_EVERY = 10
_MAX_SHOWN = 20
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
# Not of times: there jsonschema refuses the small z that RFC 3339 allows.
_FORMATS = jsonschema.FormatChecker(("email", "ipv4", "uuid"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--schemas", type=int, default=1000, help="random ones")
    parser.add_argument("--suite", type=Path, help="a folder of others in their place")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engine = Engine.load(options.package)
    if not engine.draft_permission.is_on:
        sys.exit(f"Nothing is drafted here, so nothing would be proved: {engine.draft_permission.reason}.")
    if isinstance(engine.decoder.drafter, RetrievalDrafter):
        engine.decoder.drafter.wait()
    schemas: Iterable[Any] = map(random_schema, range(options.seed, options.seed + options.schemas))
    proof = GrammarProof(engine, options.tokens)
    for number, schema in enumerate(read_suite(options.suite) if options.suite else schemas):
        proof.ask(number, schema)
    print("\n".join([*proof.summary(), *proof.faults[:_MAX_SHOWN]]))
    sys.exit(1 if proof.faults else 0)


def read_suite(folder: Path) -> Iterator[Any]:
    """The schemas of a folder's files, each once."""
    seen = set()
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        cases = content if isinstance(content, list) else [{"schema": content}]
        for schema in (case["schema"] for case in cases if isinstance(case, dict) and "schema" in case):
            if "draft7" in path.parts and isinstance(schema, dict):
                schema.setdefault("$schema", _DRAFT_7)
            text = json.dumps(schema)
            if text not in seen:
                seen.add(text)
                yield schema


@dataclass
class GrammarProof:
    """What was found. stats: of answers with a schema or without ("free"), drafted or plain."""

    engine: Engine
    max_tokens: int
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    stats: dict[tuple[str, str], list[GenerationStats]] = field(default_factory=dict)

    def ask(self, number: int, schema: Any) -> None:
        """Answer one schema, drafted and plain."""
        text = json.dumps(schema, ensure_ascii=False)
        sampling = SamplingConfig(temperature=float(number % 2), seed=number)
        config = GenerationConfig(self.max_tokens, sampling, wants_logprobs=True, num_top_logprobs=2)
        question = f"Give me an example, as JSON of this schema: {text[:500]}"
        prompt: Prompt = (
            [{"role": "user", "content": question}] if self.engine.tokenizer.has_chat_template else question
        )
        if number % _FREE_EVERY == 0:
            self._answer(number, prompt, config, "free")
        try:
            answer, reason = self._answer(number, prompt, replace(config, grammar=Grammar("json_schema", text)), "held")
        except ConfigError as error:
            self.counts["refused"] += 1
            self.counts[f"refused: {str(error)[:100]}"] += 1
            if not str(error).endswith(".") or "\n" in str(error):
                self.faults.append(f"Schema {number} ({text:.300}) is refused with {str(error)!r}.")
            return
        if reason != "stop":
            self.counts["cut"] += 1
            return
        try:
            problem = problem_of(answer, schema)
        except re.error:
            self.counts["unchecked: a pattern that Python does not read"] += 1
            return
        self.counts["valid" if problem is None else "wrong"] += 1
        if problem is not None:
            self.faults.append(f"Schema {number} ({text:.300}): {answer!r:.200} is not valid: {problem}")

    def _answer(self, number: int, prompt: Prompt, config: GenerationConfig, kind: str) -> tuple[str, str]:
        drafted = self.engine.generate(prompt, config)
        plain = self.engine.generate(prompt, replace(config, is_drafted=False))
        if (drafted.token_ids, drafted.logprobs) != (plain.token_ids, plain.logprobs):
            self.faults.append(f"Schema {number}, {kind}: drafted {drafted.text!r:.200}, plain {plain.text!r:.200}.")
        self.stats.setdefault((kind, "drafted"), []).append(drafted.stats)
        self.stats.setdefault((kind, "plain"), []).append(plain.stats)
        return drafted.text, drafted.finish_reason

    def summary(self) -> list[str]:
        lines = [f"{count:5} {name}" for name, count in sorted(self.counts.items())]
        lines += [_figures(*key, stats) for key, stats in sorted(self.stats.items())]
        return [*lines, f"{len(self.faults)} faults"]


def is_date(value: object) -> bool:
    """Whether a text is a date as RFC 3339 has it, which knows a year 0000, unlike Python. Raises ValueError."""
    if not isinstance(value, str):
        return True
    date.fromisoformat(re.sub("^0000-", "2000-", value))
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII) is not None


_FORMATS.checks("date", ValueError)(is_date)


def problem_of(answer: str, schema: Any) -> str | None:
    """What is wrong with an answer to a schema. Raises re.error for a schema whose pattern Python does not read."""
    try:
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        validator = kind(schema, format_checker=_FORMATS)
        error = next(validator.iter_errors(json.loads(answer)), None)
    except re.error:
        raise
    except Exception as failed:  # of the text, or of what jsonschema makes of a schema
        return f"{type(failed).__name__}: {failed}"
    return None if error is None else str(error.message)


def _figures(kind: str, how: str, several: Sequence[GenerationStats]) -> str:
    total = GenerationStats.total(several)
    token_ms = 1e3 * total.decode_s / max(total.num_decoded_tokens, 1)
    step_ms = 1e3 * total.decode_s / max(total.num_steps, 1)
    return (
        f"{kind} {how}: {total.num_tokens} tokens, {total.acceptance_length:.2f} a pass, {token_ms:.2f} ms a token, "
        f"{step_ms:.2f} ms a pass, accepted {dict(total.accepted_by_source)}"
    )


if __name__ == "__main__":
    main()


Schema = dict[str, Any]
_WORDS = ("name", "id", "city", "price", "tags", "kind", "count", "is_open", "note", "größe", "first name", "x-y", "a")
_PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", "[0-9]", "^.{3,9}$")
_FORMAT_NAMES = ("date", "date-time", "time", "uuid", "ipv4", "email")
_DEPTH = 3


def random_schema(seed: int) -> Schema:
    """An object's or an array's schema, with definitions that it refers to."""
    rng = random.Random(seed)
    definitions = {f"part{number}": _value(rng, _DEPTH - 1) for number in range(rng.randrange(3))}
    schema = _object(rng, 0, tuple(definitions)) if rng.random() < 0.8 else _array(rng, 0, tuple(definitions))
    return schema | ({"$defs": definitions} if definitions else {})


def _value(rng: random.Random, depth: int, parts: tuple[str, ...] = ()) -> Schema:
    kinds = [_string, _number, _integer, _choice, _simple]
    if depth < _DEPTH:
        kinds += [lambda rng: _object(rng, depth, parts), lambda rng: _array(rng, depth, parts)]
        kinds += [lambda rng: _either(rng, depth, parts)]
    if parts and rng.random() < 0.2:
        return {"$ref": f"#/$defs/{rng.choice(parts)}"}
    return rng.choice(kinds)(rng)


def _object(rng: random.Random, depth: int, parts: tuple[str, ...]) -> Schema:
    names = rng.sample(_WORDS, rng.randrange(1, 5))
    required = [name for name in names if rng.random() < 0.7]
    schema: Schema = {"type": "object", "properties": {name: _value(rng, depth + 1, parts) for name in names}}
    if required:
        schema["required"] = required
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _array(rng: random.Random, depth: int, parts: tuple[str, ...]) -> Schema:
    least = rng.randrange(3)
    schema: Schema = {"type": "array", "items": _value(rng, depth + 1, parts), "maxItems": least + rng.randrange(3)}
    return schema | ({"minItems": least} if least else {})


def _either(rng: random.Random, depth: int, parts: tuple[str, ...]) -> Schema:
    return {"anyOf": [_value(rng, depth + 1, parts) for _ in range(rng.randrange(2, 4))]}


def _string(rng: random.Random) -> Schema:
    match rng.randrange(4):
        case 0:
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": rng.choice(_FORMAT_NAMES)}
        case 2:
            return {"type": "string", "minLength": rng.randrange(4), "maxLength": rng.randrange(4, 20)}
    return {"type": "string", "maxLength": 30}


def _number(rng: random.Random) -> Schema:
    least = rng.choice((-1.5, 0, 10))
    return {"type": "number", "minimum": least, "maximum": least + rng.choice((1, 2.25, 1000))}


def _integer(rng: random.Random) -> Schema:
    least = rng.randrange(-20, 200)
    schema: Schema = {"type": "integer", "minimum": least, "exclusiveMaximum": least + rng.randrange(20, 400)}
    return schema | ({"multipleOf": rng.randrange(2, 6)} if rng.random() < 0.2 else {})


def _choice(rng: random.Random) -> Schema:
    values = rng.sample(("red", "blue", 'with "quotes"', "naïve", 3, 2.5, None, True, ["a", 1], {"b": "c"}), 4)
    return {"enum": values} if rng.random() < 0.8 else {"const": values[0]}


def _simple(rng: random.Random) -> Schema:
    return {"type": rng.choice(("boolean", "null"))} if rng.random() < 0.8 else {"type": ["integer", "null"]}
