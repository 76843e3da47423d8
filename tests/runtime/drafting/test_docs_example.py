"""The source of drafts that docs/how-to/own-source.md shows is one: it drafts, and changes no answer."""

import re
from pathlib import Path
from typing import Any

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from tests.conftest import ROOT


def test_the_source_in_the_documentation_drafts(demo_folder: Path) -> None:
    config = GenerationConfig(max_tokens=40)
    plain = Engine.load(demo_folder, EngineConfig(is_drafted=False)).generate("# tar", config)
    text = (ROOT / "docs" / "how-to" / "own-source.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"path": demo_folder, "token_ids": plain.token_ids[8:14]}
    names["config"] = EngineConfig(is_calibrated=False)
    exec(example.replace("load(path, ", "load(path, config, "), names)  # noqa: S102  # our own text
    engine = names["engine"]
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    drafted = engine.generate("# tar", config)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by_source["sentence"] > 0
