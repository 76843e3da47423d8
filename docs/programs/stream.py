from reader_edge import Engine

with Engine.load("smollm2:135m") as engine:
    for chunk in engine.stream([{"role": "user", "content": "Explain tar to me."}], max_tokens=200):
        print(chunk.text, end="", flush=True)
        if chunk.result is not None:  # the last one has the whole answer
            print(f"\n{chunk.result.stats.tokens_per_s:.1f} tokens a second")
