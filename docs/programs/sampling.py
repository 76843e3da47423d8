from reader_edge import Engine

with Engine.load("smollm2:135m") as engine:
    for seed in range(3):  # the same seed gives the same text, drafted or not
        answer = engine.generate("Once upon a time", max_tokens=40, temperature=0.8, top_p=0.95, seed=seed)
        print(seed, answer.text)
