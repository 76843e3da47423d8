from reader_edge import Engine, Message

messages: list[Message] = [{"role": "system", "content": "Answer in one sentence."}]
with Engine.load("smollm2:135m") as engine:
    for question in ("What is tar?", "And gzip?"):
        messages.append({"role": "user", "content": question})
        answer = engine.generate(messages, max_tokens=100)
        messages.append(answer.message)
        print(answer.text)
