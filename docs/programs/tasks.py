import asyncio

from reader_edge import AsyncEngine


async def main(engine: AsyncEngine) -> None:
    async with engine:  # each task's answer is what it would be alone
        answers = [engine.generate(f"# {name}", max_tokens=60) for name in ("tar", "curl", "git")]
        for answer in await asyncio.gather(*answers):
            print(answer.text)


asyncio.run(main(AsyncEngine.load("smollm2:135m")))
