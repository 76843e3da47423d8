"""Which factors of an adapter go beside which product of a package, and what is refused of one that changes others."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reader_edge_runtime.adapters.adapter import Adapter, own_name
from reader_edge_runtime.adapters.adapter_table import Factors
from reader_edge_runtime.adapters.gguf_adapter import MULTIPLIED, PAIRED, GgufAdapter, is_written_as
from reader_edge_runtime.adapters.peft_folder import PeftFolder
from reader_edge_runtime.errors import AdapterError
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.untrusted.gguf_header import is_gguf

_AT_EXPORT = "merge it into a package of its own with `reader-edge export MODEL OUT --adapter FOLDER`"
_TABLES = re.compile(r"(.*\.)?(embed_tokens|wte|lm_head|token_embd|output)(\.weight)?")
_ROUTERS = re.compile(r"(.*\.)?(gate|router|ffn_gate_inp)(\.weight)?")
_TENSOR = re.compile(r"blk\.([0-9]{1,4})\.(\w{1,40})\.weight", re.ASCII)
_MODULES = {  # by llama.cpp's names of tensors
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.qkv_proj",),
    "attn_output": ("self_attn.o_proj",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj", "mlp.gate_up_proj"),
    "ffn_down": ("mlp.down_proj",),
}


def open_adapter(path: Path) -> Adapter:
    """The adapter in a PEFT folder or a GGUF file, whatever model it is for.

    Raises AdapterError, or GgufError for a broken file.
    """
    if path.is_dir():
        return PeftFolder.open(path)
    if is_gguf(path):
        return GgufAdapter.open(path)
    raise AdapterError(f"No adapter at '{path}': give a folder that PEFT wrote, or a GGUF file of an adapter.")


def module_factors(adapter: Adapter, manifest: Manifest) -> dict[str, Factors]:
    """By names of modules in a package that takes adapters, the factors of each that is changed, finite.

    All shapes are compared before anything is read. Raises AdapterError where it is for another model, or cannot be
    computed beside this one.
    """
    shapes = {
        part.name: (part.num_outputs, product.num_inputs)
        for product in manifest.adapted_products
        for part in product.parts
    }
    if isinstance(adapter, GgufAdapter):
        _check_architecture(adapter, manifest.architecture)
    adapter.check_base(manifest.source_name)
    modules: dict[str, str] = {}
    for target, change in adapter.changes.items():
        module = _module_of(adapter, target, shapes)
        adapter.check_shapes(target, shapes[module])
        if module in modules:
            raise AdapterError(f"'{adapter.path}' changes {module} by two names: fetch the adapter again.")
        if change.magnitude is not None:
            raise adapter.other("gives rows their length (DoRA), which only merged ones have", _AT_EXPORT)
        modules[module] = target
    _check_room(adapter, max(adapter.changes[target].down[0] for target in modules.values()), manifest)
    return {module: _read(adapter, target, module, manifest) for module, target in modules.items()}


def _check_room(adapter: Adapter, rank: int, manifest: Manifest) -> None:
    """Raise AdapterError where memory is short: one module of a high rank makes room of that rank for all."""
    wanted, free = 4 * rank * sum(product.rank_size for product in manifest.adapted_products), free_bytes()
    if free is not None and wanted > free:
        raise AdapterError(
            f"'{adapter.path}' takes {wanted / 1e9:.1f} GB beside the model, in rank {rank}, and {free / 1e9:.1f} GB "
            "are free: end other programs, or give an adapter of a lower rank."
        )


def _read(adapter: Adapter, target: str, module: str, manifest: Manifest) -> Factors:
    with np.errstate(all="ignore"):  # an adapter may hold any numbers
        up, down, _ = adapter.changes[target].read()
    if not (np.isfinite(up).all() and np.isfinite(down).all()):
        raise AdapterError(
            f"'{adapter.path}' holds numbers of {target:.100} that are not finite: fetch the adapter again."
        )
    if isinstance(adapter, GgufAdapter) and adapter.architecture in PAIRED:
        num_heads = {"q_proj": manifest.num_heads, "k_proj": manifest.num_kv_heads}.get(module.split(".")[-1])
        if num_heads is not None:
            up = up.reshape(num_heads, -1, 2, up.shape[1]).swapaxes(1, 2).reshape(up.shape)
    return Factors(up, down)


def _module_of(adapter: Adapter, target: str, shapes: Mapping[str, tuple[int, int]]) -> str:
    """The module that a target of an adapter means. Raises AdapterError."""
    if isinstance(adapter, GgufAdapter):
        found = _TENSOR.fullmatch(target)
        ends = [f".{found[1]}.{module}" for module in _MODULES.get(found[2], ())] if found else []
    else:
        ends = [f".{own_name(target)}"]
    for name in shapes:
        if f".{name}".endswith(tuple(ends)):
            return name
    if ".experts" in target or "_exps" in target:
        raise adapter.other(f"changes the experts of a mixture ({target!r:.100})")
    if _ROUTERS.fullmatch(target):
        raise adapter.other(f"changes what sends tokens to experts ({target!r:.100})", _AT_EXPORT)
    if _TABLES.fullmatch(target):
        raise adapter.other(f"changes the embeddings or the logit head ({target!r:.100})")
    raise adapter.missing(target)


def _check_architecture(adapter: GgufAdapter, model_type: str) -> None:
    if not is_written_as(model_type, adapter.architecture):
        raise AdapterError(
            f"'{adapter.path}' is an adapter for {adapter.architecture!r:.40}, and the model is a {model_type}: give "
            "the model that it was trained on."
        )
    if model_type in MULTIPLIED:  # the package is of a folder
        raise adapter.other("is of weights that are multiplied by factors of their config", "give its folder")
