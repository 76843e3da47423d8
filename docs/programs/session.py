from pathlib import Path

from reader_edge import Engine

with Engine.load("smollm2:135m") as engine:
    messages = engine.load_session("talk") if Path("talk").exists() else []
    messages.append({"role": "user", "content": "What did I say before?"})
    messages.append(engine.generate(messages, max_tokens=60).message)
    engine.save_session("talk", messages)
    print(messages[-1]["content"], engine.context_length)
