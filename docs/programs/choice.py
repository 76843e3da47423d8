from reader_edge import Engine, Grammar

grammar = Grammar("choice", '["positive", "negative"]')
with Engine.load("smollm2:135m") as engine:
    for review in ("I loved it.", "What a waste of time."):
        question = [{"role": "user", "content": f"Is this review positive or negative? {review}"}]
        print(review, engine.generate(question, grammar=grammar).text)
