from reader_edge import Engine

with Engine.load("smollm2:135m") as engine:
    answer = engine.generate("The three laws of thermodynamics are", max_tokens=100, stop="\n\n")
    print(answer.text, answer.finish_reason, answer.usage.total_tokens)
