from reader_edge import Engine

prompts = ["# tar", "# git commit", "# curl"]
with Engine.load() as engine:  # the bundled demo model
    for prompt, answer in zip(prompts, engine.generate_batch(prompts, max_tokens=60), strict=True):
        print(prompt, answer.text, answer.stats.acceptance_length)
