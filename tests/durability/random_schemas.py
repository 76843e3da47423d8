"""Random JSON schemas of the kinds that applications send, the same for the same seed."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("name", "id", "city", "price", "tags", "kind", "count", "is_open", "note", "größe", "first name", "x-y", "a")
_PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", "[0-9]", "^.{3,9}$")
_FORMATS = ("date", "date-time", "time", "uuid", "ipv4", "email")
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
            return {"type": "string", "format": rng.choice(_FORMATS)}
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
