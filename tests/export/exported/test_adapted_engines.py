"""An engine over a package that takes adapters: requests with several of them, together, are what each is alone."""

from pathlib import Path

import numpy as np
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import AdapterError, ConfigError
from tests.export.conftest import TinyModel
from tests.export.source_models import load_folder
from tests.export.sources.adapters.adapter_files import (
    draw_factors,
    gguf_factors,
    peft_tensors,
    write_gguf_adapter,
    write_peft,
)
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels
NAMES = ("first", "second", "third")
PROMPT = [5, 9, 2, 40, 17, 3, 8, 8, 11, 5, 9, 2, 40]


@pytest.fixture(scope="module")
def engine(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """With two adapters from folders and one from a GGUF file; the third is the first, in another format."""
    root, folder = tmp_path_factory.mktemp("adapted"), tiny_model("llama")
    export_model(folder, root / "package", ExportOptions("int8", check="none", takes_adapters=True))
    module = load_folder(folder)
    factors = {name: (up * 3, down) for name, (up, down) in draw_factors(module).items()}
    other = {name: (-up, down) for name, (up, down) in factors.items()}
    paths = {
        "first": write_peft(root / "first", peft_tensors(factors)),
        "second": write_peft(root / "second", peft_tensors(other)),
        "third": write_gguf_adapter(root / "third.gguf", "llama", gguf_factors(module, "llama", factors)),
    }
    config = EngineConfig(is_calibrated=False, is_probed=False, max_batch=4)
    drafter = RetrievalDrafter(DraftConfig()).wait()
    return Engine.load(root / "package", config, drafter=drafter, adapters=paths)


def ask(engine: Engine, *names: str | None, is_drafted: bool = True) -> list[tuple[int, ...]]:
    configs = [GenerationConfig(24, ignores_eos=True, adapter=name, is_drafted=is_drafted) for name in names]
    return [result.token_ids for result in engine.generate_batch([PROMPT] * len(names), configs)]


def test_each_request_of_a_batch_has_its_own(engine: Engine) -> None:
    every = (None, *NAMES)
    alone = [ask(engine, name, is_drafted=False)[0] for name in every]
    assert len(set(alone)) == 3
    assert alone[1] == alone[3]
    for _ in range(2):  # the second time drafts from past answers, each from its own
        assert ask(engine, *every) == alone
    assert ask(engine, *reversed(every)) == alone[::-1]


def test_adapters_are_those_of_the_engine(engine: Engine, tmp_path: Path) -> None:
    [first] = ask(engine, "first")
    engine.load_adapter("again", engine.adapters.get("first").path)
    assert ask(engine, "again") == [first]
    assert engine.adapters.get("again").fingerprint == engine.adapters.get("first").fingerprint
    engine.drop_adapter("again")
    with pytest.raises(ConfigError, match="There is no adapter 'again': loaded are first, second, third"):
        ask(engine, "again")
    with pytest.raises(AdapterError, match=r"No adapter at '.*': give a folder that PEFT wrote"):
        engine.load_adapter("nowhere", tmp_path / "nowhere")
    assert list(engine.adapters) == list(NAMES)


def test_rows_of_another_adapter_are_never_reused(engine: Engine) -> None:
    engine.forget()
    text = np.random.default_rng(0).integers(4, 60, size=40).tolist()
    reused = [
        engine.generate(text, GenerationConfig(2, adapter=name)).stats.num_reused_tokens
        for name in (None, "first", "second", "first", None, "third")
    ]
    assert [number > 30 for number in reused] == [False, False, False, True, True, True]  # the third is the first
