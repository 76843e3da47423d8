"""A model of transformers whose weights take no memory, so that no size that a file claims is allocated unseen."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from reader_edge_runtime.errors import ExportError, GgufError
from reader_edge_runtime.machine.process_memory import free_bytes

_OF_ALL_ROPES = ("rope_type", "rope_theta", "partial_rotary_factor")
_MAX_BUFFER_BYTES = 1 << 30  # tables and norms that a module computes for itself


def skeleton_of(config: Mapping[str, Any], source: str, error: type[ExportError] = ExportError) -> PreTrainedModel:
    """The model in fp32 with plain attention. Its buffers are real; each of its weights is a single number, repeated.

    config: the arguments of its class, see `built_config`. source: the file or folder, for errors, which are `error`.
    """
    built = built_config(config, source, error)
    if built.model_type == "muse_glimmer_text":
        import reader_edge_export.sources.muse_glimmer  # noqa: F401  which names its class

    def build() -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            built, dtype=torch.float32, attn_implementation="eager"
        )
        return model

    skeleton = without_memory(build, source, error)
    skeleton.tie_weights()
    make_plain(skeleton)
    return skeleton


def without_memory(
    build: Callable[[], PreTrainedModel], source: str, error: type[ExportError] = ExportError
) -> PreTrainedModel:
    """What `build` makes in fp32, likewise. source, error: of `skeleton_of`."""
    try:
        _check_buffers(build, source, error)
        with _EmptyOnMeta(), _weights_without_memory(), no_init_weights():
            skeleton: PreTrainedModel = build()
    except ExportError:
        raise
    except Exception as reason:  # transformers and PyTorch raise many classes for sizes that cannot be
        raise _not_built(source, reason, error) from reason
    skeleton.eval()
    return skeleton


def make_plain(skeleton: PreTrainedModel) -> None:
    """Make parameters of the buffers that files hold, which are weights like others.

    Gemma 4's scales of layers and LFM2's biases of experts are such.

    What a module does to save time for the last tokens alone is left out, and in which order it goes through kinds of
    layers is the same each time.
    """
    modules: list[Any] = list(skeleton.modules())
    for module in modules:
        for name in [name for name in module._buffers if name not in module._non_persistent_buffers_set]:
            buffer = module._buffers.pop(name)
            assert buffer is not None
            values = torch.zeros_like(buffer, device="cpu")  # it may have no memory; files have its values
            module.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
        if hasattr(module, "unique_layer_types"):  # a set, whose order changes
            module.unique_layer_types = sorted(module.unique_layer_types)
        if hasattr(module, "first_kv_shared_layer_idx"):
            module.first_kv_shared_layer_idx = len(module.layers)


def _not_built(source: str, reason: Exception, error: type[ExportError]) -> ExportError:
    words = " ".join(str(reason).split()) or type(reason).__name__
    remedy = "give another file" if issubclass(error, GgufError) else "correct its config.json"
    return error(f"'{source}' describes a model that cannot be built ({words:.200}): {remedy}.")


def built_config(args: Mapping[str, Any], source: str, error: type[ExportError] = ExportError) -> PretrainedConfig:
    """The config of its class. args: the class's own arguments, as `hf_config` gives them.

    Raises `error` for what the class refuses.
    """
    given = dict(args)
    rope = given.pop("rope_parameters", {})
    try:
        config: PretrainedConfig = AutoConfig.for_model(**given)
    except Exception as reason:  # the class's own checks, of many kinds
        raise _not_built(source, reason, error) from reason
    if rope:  # past the class, which takes fewer types than its module computes
        own = config.rope_parameters
        is_nested = any(isinstance(value, dict) for value in rope.values())
        config.rope_parameters = (
            {key: _completed(rope.get(key, {}), own[key]) for key in own} if is_nested else _completed(rope, own)
        )
    return config


def _completed(rope: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, and the class's own for what every type has and these leave out."""
    return {key: own[key] for key in _OF_ALL_ROPES if key in own} | dict(rope)


def check_largest(model: PreTrainedModel, source: str, error: type[ExportError] = ExportError) -> None:
    """Raise `error` where the largest matrix of a model in fp32, and as much beside it, is more than is free.

    Of those of experts one is read at a time.
    """
    head: Any = model.get_output_embeddings()
    embeddings = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    looked_up = {id(weight) for weight in embeddings if head is None or weight is not head.weight}  # a few rows each
    read = [parameter for parameter in model.parameters() if id(parameter) not in looked_up]
    sizes = [each.nbytes // (len(each) if each.ndim > 2 else 1) for each in read]
    _check_free(2 * max(sizes), source, error)


def _check_free(needed: int, source: str, error: type[ExportError]) -> None:
    # Few bytes can stand for many: two bits of a weight become 32, and what a disk never wrote reads as nought.
    free = free_bytes()
    if free is not None and needed > free:
        raise error(
            f"'{source}' takes {needed / 2**30:.1f} GiB of memory in fp32, of which {free / 2**30:.1f} are free: "
            "end other programs, or export it on a larger machine."
        )


def _check_buffers(build: Callable[[], PreTrainedModel], source: str, error: type[ExportError]) -> None:
    """Build the model on the meta device first: a table or norm of a hostile size would be allocated and filled."""
    with torch.device("meta"), no_init_weights():
        outline = build()
    norms = [parameter for parameter in outline.parameters() if parameter.ndim < 2]
    if sum(tensor.nbytes for tensor in (*outline.buffers(), *norms)) > _MAX_BUFFER_BYTES:
        raise error(f"'{source}' describes a model whose tables and norms take more than a gigabyte: give another.")


class _EmptyOnMeta(TorchFunctionMode):
    """While entered, memory that nothing is written to is not taken: modules make their matrices with torch.empty.

    What they write into a parameter of one repeated number is left out: convolutions draw their own values,
    into a copy that torch.empty_like makes.
    """

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.copy_ and not any(arguments[0].stride()):
            return arguments[0]
        place = {"device": "meta"} if function in (torch.empty, torch.empty_like) else {}
        return function(*arguments, **{**(named or {}), **place})


@contextmanager
def _weights_without_memory() -> Iterator[None]:
    """While entered, each parameter that a module gets becomes one number in the parameter's shape."""
    register = torch.nn.Module.register_parameter

    def register_small(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None:
            number = torch.zeros((), dtype=parameter.dtype)
            parameter = torch.nn.Parameter(number.expand(parameter.shape), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_small  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
