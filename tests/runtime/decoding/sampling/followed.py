"""Grammars followed in this process without a model, a byte a token; random schemas with every keyword."""

import json
import random
from functools import cache
from typing import Any

from reader_edge_runtime.decoding.sampling.grammar_worker import ADVANCE, CHECK, MASK
from reader_edge_runtime.decoding.sampling.grammar_worker.grammar_source import GrammarSource
from reader_edge_runtime.decoding.sampling.grammar_worker.matcher import GrammarMatcher
from reader_edge_runtime.decoding.sampling.grammar_worker.unique_keys import KeyTokens

END = 256
_LIKELY = b'"}],'  # that answers end some time
_MAX_BYTES = 300


class _Bytes:
    """A tokenizer whose tokens are bytes, as llguidance wants one."""

    eos_token_id, bos_token_id = END, None
    special_token_ids = (END,)

    def __init__(self, more: tuple[bytes, ...]) -> None:
        self.tokens = (*(bytes([byte]) for byte in range(END)), b"", *more)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _tokenizer(more: tuple[bytes, ...]) -> tuple[Any, KeyTokens]:
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    tokens = _Bytes(more).tokens
    wrapper = TokenizerWrapper(_Bytes(more))
    return LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=[END]), KeyTokens(tokens)


def follow(schema: Any, kind: str = "json_schema", more: tuple[bytes, ...] = ()) -> GrammarMatcher:
    """A schema, or the text of another grammar, before its answer. Raises ValueError for what cannot be followed.

    more: tokens beside single bytes, behind END.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    followed = GrammarMatcher(GrammarSource(kind, text), *_tokenizer(more))
    allowed(followed)
    return followed


def left_out_of(schema: dict[str, Any]) -> list[str]:
    """What is left out of a schema that is not strict."""
    return follow({**schema, "x-guidance": {"lenient": True}}).left_out


def allowed(followed: GrammarMatcher) -> list[int]:
    """The tokens that may come next. Raises ValueError where the grammar cannot be followed further."""
    mask = int.from_bytes(followed.reply(MASK, []), "little")
    if followed.error:
        raise ValueError(followed.error)
    return [token_id for token_id in range(len(followed._key_tokens.tokens)) if mask >> token_id & 1]


def takes(schema: Any, text: str) -> bool:
    """Whether a text may be the whole answer. Raises ValueError for a schema that cannot be followed."""
    followed = schema if isinstance(schema, GrammarMatcher) else follow(schema)
    for byte in text.encode():
        if byte not in allowed(followed):
            return False
        followed.reply(ADVANCE, [byte])
    return END in allowed(followed)


def random_answer(
    followed: GrammarMatcher,
    rng: random.Random,
    likely: bytes = _LIKELY,
    max_bytes: int = _MAX_BYTES,
    eagerness: float = 0.4,
) -> str | None:
    """A whole answer; None for one that grows too long. It has not to be likely, but may be.

    eagerness: how often a likely byte, or a longer token, is taken where there is one.
    """
    text = bytearray()
    while len(text) < max_bytes:
        left = allowed(followed)
        if END in left and (len(left) == 1 or rng.random() < 0.5):
            return text.decode()
        left = [token_id for token_id in left if token_id < 128 or token_id > END] or left
        wanted = [token_id for token_id in left if token_id > END or token_id in likely]
        token_id = rng.choice(wanted if wanted and rng.random() < eagerness else left)
        followed.reply(ADVANCE, [token_id])
        text += followed._key_tokens.tokens[token_id]
    return None


def problem_of_answer(followed: GrammarMatcher) -> str:
    """What the validator says of the answer so far."""
    return followed.reply(CHECK, []).decode()


Schema = dict[str, Any]


_KEYS = ("a", "b", "ab", "größe", 'q"x', "x-y", "", "A")
_NUMBERS = (
    *(0, 1, -1, 5, 10, 0.1, 0.25, -2.5, 3.75, 1e-7, 0.3, 100, 999, 1000, 1e9, -0.0, 99.99, 1.5e-9),
    *(2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 10**18, -(10**18), 1e20, 1e22, 0.30000000000000004),
)
_STEPS = (1, 2, 3, 5, 7, 10, 0.1, 0.5, 0.25, 0.01, 0.07, 1.1, 100, 2.5, 65537, 10**10)
_PATTERNS = (
    *("^[a-z]{2,6}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", "[0-9]", "^.{3,9}$", r"^\d+$", r"^\w+\s\w+$", "^[^[]+$"),
    *("[&&]", r"^\S*$", "a", "^a|b$", r"^[\w.-]+$", "^$", "^x", r"\.[a-z]+$"),
)
_FORMATS = ("date", "date-time", "time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration", "odd", "int64")
_DEPTH = 3


def wild_schema(seed: int) -> Schema:
    """A schema with up to two definitions, which may refer to each other and to themselves."""
    return _Wild(random.Random(seed)).root()


class _Wild:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = [f"d{number}" for number in range(rng.randrange(3))]

    def root(self) -> Schema:
        schema = self._schema(0)
        root = schema if isinstance(schema, dict) else {}
        return root | ({"$defs": {name: self._schema(1) for name in self._names}} if self._names else {})

    def _is(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _value(self, depth: int = 0) -> Any:
        match self._rng.randrange(8 if depth < 2 else 5):
            case 0 | 1:
                return self._rng.choice(_NUMBERS)
            case 2:
                return self._rng.choice((True, False, None))
            case 3 | 4:
                return self._rng.choice(("red", "x y", "naïve", '"q"'))
            case 5:
                return [self._value(depth + 1) for _ in range(self._rng.randrange(3))]
        return {self._rng.choice(_KEYS): self._value(depth + 1) for _ in range(self._rng.randrange(3))}

    def _schema(self, depth: int) -> Any:
        if depth > _DEPTH:
            return self._rng.choice(({"type": "string"}, {"type": "boolean"}, {"type": "integer"}, True, {}))
        match self._rng.randrange(15):
            case 0:
                return self._text()
            case 1 | 2:
                return self._number()
            case 3:
                return {"enum": [self._value() for _ in range(self._rng.randrange(1, 5))]}
            case 4:
                return {"const": self._value()}
            case 5 | 6 | 7 | 8:
                return self._object(depth)
            case 9 | 10:
                return self._array(depth)
            case 11 | 12:
                name = self._rng.choice(("anyOf", "oneOf", "allOf"))
                return {name: [self._schema(depth + 1) for _ in range(self._rng.randrange(1, 4))]}
            case 13 if self._names:
                reference = {"$ref": f"#/$defs/{self._rng.choice(self._names)}"}
                return reference | ({"type": self._rng.choice(("object", "string"))} if self._is(0.15) else {})
        return {"type": "boolean"} if self._is(0.8) else {"not": {"type": "string"}}

    def _text(self) -> Schema:
        given = {
            "pattern": (0.5, _PATTERNS),
            "format": (0.4, _FORMATS),
            "minLength": (0.4, range(5)),
            "maxLength": (0.4, (3, 8, 20, 3.0, 10**12)),
        }
        return {"type": self._rng.choice(("string", ["string", "null"]))} | self._some(given)

    def _number(self) -> Schema:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        given = {name: (0.35, _NUMBERS) for name in bounds} | {"multipleOf": (0.25, _STEPS)}
        return {"type": self._rng.choice(("integer", "number", ["number", "null"]))} | self._some(given)

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(_KEYS, self._rng.randrange(4))
        schema: Schema = {"type": "object", "properties": {name: self._schema(depth + 1) for name in names}}
        if self._is(0.6):
            schema["required"] = [name for name in names if self._is(0.6)] + ["unlisted"] * self._is(0.1)
        if self._is(0.4):
            schema["additionalProperties"] = self._rng.choice((False, True, {}, self._schema(depth + 1)))
        if self._is(0.2):
            schema["patternProperties"] = {self._rng.choice(("^a", "^[xyz]", "[0-9]$", "^.$")): self._schema(depth + 1)}
        if self._is(0.15):
            schema[self._rng.choice(("allOf", "anyOf"))] = [self._schema(depth + 1) for _ in range(2)]
        given = {
            "minProperties": (0.2, range(3)),
            "maxProperties": (0.2, range(4)),
            "unevaluatedProperties": (0.1, (False, True)),
            "propertyNames": (0.05, ({"maxLength": 3},)),
        }
        keywords = list((schema | self._some(given)).items())
        self._rng.shuffle(keywords)
        return dict(keywords)

    def _array(self, depth: int) -> Schema:
        schema: Schema = {"type": "array"}
        if self._is(0.7):
            schema["items"] = self._schema(depth + 1)
        if self._is(0.3):
            schema["prefixItems"] = [self._schema(depth + 1) for _ in range(self._rng.randrange(1, 3))]
        least = self._rng.randrange(3)
        given = {
            "minItems": (0.5, (least,)),
            "maxItems": (0.6, (least + self._rng.randrange(3),)),
            "uniqueItems": (0.1, (True, False)),
        }
        return schema | self._some(given)

    def _some(self, given: dict[str, tuple[float, Any]]) -> Schema:
        return {
            name: self._rng.choice(values) for name, (probability, values) in given.items() if self._is(probability)
        }
