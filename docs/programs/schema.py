from pydantic import BaseModel

from reader_edge import Engine


class Person(BaseModel):
    name: str
    age: int


with Engine.load("smollm2:135m") as engine:
    answer = engine.generate([{"role": "user", "content": "Anna is 31."}], schema=Person, max_tokens=100)
    print(answer.parsed.name, answer.parsed.age)
