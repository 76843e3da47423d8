"""Checks a graph's inputs and outputs against the manifest."""

from collections.abc import Sequence

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.manifest import COMMIT_NAME, LOWERING_PROPERTY, ROW_ATTENTIONS, Manifest, kv_row_size
from reader_edge_runtime.package.package_parts import HANDED_IN, HANDED_OUT, feature_names

_TYPE_NAMES = {"float32": "float"}  # ONNX Runtime's, where they are not numpy's
Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name -> element type and shape
_LEFT_OUT = {"position_ids", "tree_mask", "tree_mask_sliding", "write_pos", "logit_rows"}  # where no layer reads them


def input_tensors(manifest: Manifest, num_trees: int, num_nodes: int, num_visible: int, num_rows: int) -> Tensors:
    """What a pass takes besides the KV cache."""
    mask = "float32", (num_trees, 1, num_nodes, num_visible)
    tensors: Tensors = {
        "input_ids": ("int64", (num_trees, num_nodes)),
        "position_ids": ("int64", (num_trees, num_nodes)),
        "tree_mask": mask,
        "write_pos": ("int64", (num_trees,)),
        "logit_rows": ("int64", (num_trees, num_rows)),
    }
    if manifest.stage is not None and not manifest.stage.is_first:
        del tensors["input_ids"]
        tensors[HANDED_IN] = "float32", (num_trees, num_nodes, manifest.stage.width)
    if (images := manifest.images) is not None:
        tensors["image_index"] = tensors["input_ids"]
        tensors |= dict.fromkeys(feature_names(images.num_deepstack), ("float32", (1, images.width)))
        axes = (3,) * (images.position_axes == 3)
        tensors["position_ids"] = "int64", (*axes, num_trees, num_nodes)
    if manifest.has_states:
        tensors["parents"] = "int64", (num_trees, num_nodes)
        tensors["num_kept"] = tensors["num_pending"] = "int64", (num_trees,)
    if manifest.adapted_products:
        tensors |= {"adapter_ids": ("int64", (num_trees,)), "adapter_table": (manifest.adapter_dtype, (0, 0))}
    return tensors if manifest.sliding_window is None else tensors | {"tree_mask_sliding": mask}


def output_tensors(manifest: Manifest, num_trees: int, num_rows: int) -> Tensors:
    """What a pass gives besides the KV cache."""
    if manifest.stage is not None and not manifest.stage.is_last:
        return {HANDED_OUT: ("float32", (num_trees, num_rows, manifest.stage.width))}  # of as many nodes
    tensors: Tensors = {"logits": ("float32", (num_trees, num_rows, manifest.vocab_size))}
    if manifest.attention not in ROW_ATTENTIONS:
        tensors["top_ids"] = "int64", (num_trees, num_rows, manifest.top_k)
        tensors["top_logits"] = "float32", (num_trees, num_rows, manifest.top_k)
    if COMMIT_NAME in manifest.files:
        tensors["log_sum_exp"] = "float32", (num_trees, num_rows)
    if manifest.hidden_size is not None:
        tensors["hidden_states"] = "float32", (num_trees, num_rows, manifest.hidden_size)
        states = "float32", (num_trees, num_rows, manifest.hidden_size)  # of as many nodes
        tensors |= dict.fromkeys(manifest.layer_state_names(), states)
    return tensors


def check_contract(session: ort.InferenceSession, manifest: Manifest) -> None:
    """Raise ProviderError where a graph's inputs and outputs, or its lowering, are not what the manifest says."""
    try:
        _check_tensors(session, manifest)
        lowering = session.get_modelmeta().custom_metadata_map.get(LOWERING_PROPERTY)
    except UnicodeDecodeError as error:  # ONNX Runtime loads such a graph and fails to tell of it
        raise ProviderError(f"The graph's names or metadata are not UTF-8 ({error}): export the model again.") from None
    if lowering != manifest.lowering_id:
        raise ProviderError(
            f"The graph is {lowering!r:.80}, the manifest says {manifest.lowering_id!r}: export the model again."
        )


def _check_tensors(session: ort.InferenceSession, manifest: Manifest) -> None:
    inputs = {node.name: node.shape for node in session.get_inputs()}
    types = {node.name: node.type for node in (*session.get_inputs(), *session.get_outputs())}
    outputs = {node.name: node.shape or [] for node in session.get_outputs()}  # ONNX lets an output go without
    promised = output_tensors(manifest, 1, 1)
    states, capsule_sizes = manifest.state_sizes(), manifest.capsule_sizes()
    read = {f"{word}_{name}" for name in states for word in ("state", "pending")}
    made = {f"{word}_{name}" for name in states for word in ("present", "capsule")}
    wanted = {*input_tensors(manifest, 1, 1, 1, 1), *manifest.past_names(), *read}
    _check_names("inputs", set(inputs), wanted if manifest.stage is None else wanted - (_LEFT_OUT - set(inputs)))
    if manifest.stage is not None:  # whose graph still makes states, which are required of a whole model alone
        outputs = {name: shape for name, shape in outputs.items() if not name.startswith("layer_state.")}
    _check_names("outputs", set(outputs), {*promised, *manifest.present_names(), *made})
    if manifest.adapted_products:
        _check_type("adapter_table", types["adapter_table"], manifest.adapter_dtype)
    for number, layer in manifest.cached_layers.items():
        for name in (f"past_{kind}.{number}" for kind in layer.kept):
            row_size = kv_row_size(manifest.kv_dtype, layer.head_dim)
            _check_shape(name, inputs[name], 4, {1: layer.num_kv_heads, 3: row_size})
            _check_type(name, types[name], manifest.kv_dtype)
    for name, sizes in states.items():  # ONNX Runtime holds outputs to the memory that they are bound to
        _check_shape(f"state_{name}", inputs[f"state_{name}"], 1 + len(sizes), dict(enumerate(sizes, 1)))
        _check_shape(f"pending_{name}", inputs[f"pending_{name}"], 3, {2: capsule_sizes[name]})
    for name in sorted(read | made):
        _check_type(name, types[name], "float32")
    for name, (_, shape) in promised.items():
        if len(shape) == 3:
            _check_shape(name, outputs[name], 3, {2: shape[2]})


def _check_names(kind: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        odd = ", ".join(f"{name!r:.80}" for name in sorted(found ^ wanted)[:3])
        raise ProviderError(f"The graph's {kind} differ from the manifest ({odd}): export the model again.")


def _check_type(name: str, found: str, wanted: str) -> None:
    if found != f"tensor({_TYPE_NAMES.get(wanted, wanted)})":
        raise ProviderError(f"The graph's {name} is a {found}, the manifest says {wanted}: export again.")


def _check_shape(name: str, shape: list[object], rank: int, sizes: dict[int, int]) -> None:
    """sizes: those that the manifest fixes, by axis."""
    if len(shape) != rank or any(shape[axis] != size for axis, size in sizes.items()):
        wanted = list(sizes.values())
        raise ProviderError(f"The graph's {name} has shape {shape!s:.80}, the manifest says {wanted}: export again.")


_INTEGERS, _NUMBERS = "tensor(int64)", "tensor(float)"


def check_speculator(session: ort.InferenceSession, manifest: Manifest) -> None:
    """Raise ProviderError where it does not."""
    try:
        inputs = {node.name: (node.type, node.shape) for node in session.get_inputs()}
        outputs = {node.name: (node.type, node.shape or []) for node in session.get_outputs()}
    except UnicodeDecodeError as error:  # ONNX Runtime loads such a graph and fails to tell of it
        raise ProviderError(f"The speculator's names are not UTF-8 ({error}): export the model again.") from None
    _check("inputs", inputs, _inputs(manifest))
    _check("outputs", outputs, _outputs(manifest))


SpeculatorTensors = dict[str, tuple[str, int, dict[int, int]]]  # type, rank, and the sizes that are fixed, by axis


def _inputs(manifest: Manifest) -> SpeculatorTensors:
    part, hidden_size = manifest.speculator, manifest.hidden_size
    assert part is not None
    assert hidden_size is not None
    kept = _NUMBERS, 4, {1: part.num_kv_heads, 3: part.head_dim}
    own: SpeculatorTensors = {"own_states": (_NUMBERS, 3, {2: part.hidden_size})} if part.block is None else {}
    windowed = part.block or part.lent
    if windowed is not None and windowed.window is not None:
        own["tree_mask_sliding"] = _NUMBERS, 4, {1: 1}
    return {
        "input_ids": (_INTEGERS, 2, {}),
        "position_ids": (_INTEGERS, 2, {}),
        "tree_mask": (_NUMBERS, 4, {1: 1}),
        "write_pos": (_INTEGERS, 1, {}),
        "logit_rows": (_INTEGERS, 2, {}),
        "target_states": (_NUMBERS, 3, {2: len(part.state_ids) * hidden_size}),
        **own,
        **{f"past_{kind}.{layer}": kept for layer in range(part.num_layers) for kind in ("key", "value")},
        **_lent(manifest, () if part.lent is None else part.lent.layers),
    }


def _lent(manifest: Manifest, numbers: Sequence[int]) -> SpeculatorTensors:
    """Keys and values of layers of the target."""
    element = f"tensor({_TYPE_NAMES.get(manifest.kv_dtype, manifest.kv_dtype)})"
    layers = {number: manifest.cached_layers[number] for number in numbers}
    return {
        f"past_{kind}.{number}": (
            element,
            4,
            {1: layer.num_kv_heads, 3: kv_row_size(manifest.kv_dtype, layer.head_dim)},
        )
        for number, layer in layers.items()
        for kind in layer.kept
    }


def _outputs(manifest: Manifest) -> SpeculatorTensors:
    part = manifest.speculator
    assert part is not None
    kept: tuple[str, int, dict[int, int]] = _NUMBERS, 4, {}
    own: SpeculatorTensors = {"next_states": (_NUMBERS, 3, {2: part.hidden_size})}
    if part.block is not None:
        own = {"pair_logits": (_NUMBERS, 4, {2: part.top_k, 3: part.top_k})} if part.block.has_pairs else {}
    return {
        "top_ids": (_INTEGERS, 3, {2: part.top_k}),
        "top_logits": (_NUMBERS, 3, {2: part.top_k}),
        "log_sum_exp": (_NUMBERS, 2, {}),
        **own,
        **{f"present_{kind}.{layer}": kept for layer in range(part.num_layers) for kind in ("key", "value")},
    }


def _check(kind: str, found: dict[str, tuple[str, list[object]]], wanted: SpeculatorTensors) -> None:
    if set(found) != set(wanted):
        odd = ", ".join(f"{name!r:.80}" for name in sorted(set(found) ^ set(wanted))[:3])
        raise ProviderError(f"The speculator's {kind} differ from the manifest ({odd}): export the model again.")
    for name, (element, rank, sizes) in wanted.items():
        found_element, shape = found[name]
        is_sized = len(shape) == rank and all(shape[axis] == size for axis, size in sizes.items())
        if found_element != element or not is_sized:
            raise ProviderError(
                f"The speculator's {name} is a {found_element} of {shape!s:.80}, the manifest says {element} with "
                f"{list(sizes.values())}: export the model again."
            )
