"""The part of a model that sees images: its config, which is checked before anything heavy is imported."""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reader_edge_export.sources.config.config_keys import READ, check_keys
from reader_edge_export.sources.config.config_values import MAX_LAYERS
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.text_part import given_text_config
from reader_edge_runtime.errors import ConfigError, ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.images import ImageRules

if TYPE_CHECKING:
    from reader_edge_export.sources.gguf.gguf_file import GgufFile

_PROCESSOR_NAMES = ("preprocessor_config.json", "processor_config.json")
_TOKEN_KEYS = ("image_token_id", "image_token_index")
_DEPTHS = ("depth", "num_hidden_layers")
_REMEDY = "export the model without its images (--no-images)"


@dataclass(frozen=True, slots=True)
class ImageFamily:
    """vision_type: the model_type of its vision_config, whose keys `READ` has. modules: those of its tensors.

    other_types: what folders write instead. keys: of config.json beside vision_config, what its projector reads.
    fixed: of the same, those that must have a value, or be left out.
    sections: how many frequencies turn by time, row and column, where the config does not say; () where an image's
    tokens have one position. is_interleaved: whether these take turns. sees_whole_image: see `ImagesPart`.
    """

    vision_type: str
    modules: tuple[str, ...]
    other_types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    is_interleaved: bool = True
    sees_whole_image: str = "none"


_QWEN3_5 = ImageFamily(
    "qwen3_5_vision", ("visual",), ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_vision"), sections=(11, 11, 10)
)
_QWEN3_VL = ImageFamily(
    "qwen3_vl_vision", ("visual",), ("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_vision"), sections=(24, 20, 20)
)
_WITH_PROJECTOR = ("multi_modal_projector", "vision_tower")
_CONNECTED = ("connector", "vision_model")
_WITH_SCALE = ("scale_factor",)
_OLDER = ("siglip_vision_model", "smolvlm", "idefics3")
FAMILIES = {  # by model_type of the whole; how each computes is in `images.towers`
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen2_5_vl": ImageFamily(
        "qwen2_5_vl_vision", ("visual",), ("qwen2_5_vl",), sections=(16, 24, 24), is_interleaved=False
    ),
    "mistral3": ImageFamily(
        "pixtral",
        _WITH_PROJECTOR,
        keys=("projector_hidden_act", "multimodal_projector_bias", "spatial_merge_size"),
        fixed={"vision_feature_layer": -1},
    ),
    "lfm2_vl": ImageFamily(
        "siglip2_vision_model",
        _WITH_PROJECTOR,
        keys=(
            *("downsample_factor", "projector_hidden_act", "projector_hidden_size", "projector_bias"),
            "projector_use_layernorm",
        ),
    ),
    "gemma3": ImageFamily(
        "siglip_vision_model", _WITH_PROJECTOR, keys=("mm_tokens_per_image",), sees_whole_image="all"
    ),
    "smolvlm": ImageFamily("smolvlm_vision", _CONNECTED, _OLDER, _WITH_SCALE),
    "idefics3": ImageFamily("idefics3_vision", _CONNECTED, _OLDER, _WITH_SCALE),
    "gemma4": ImageFamily("gemma4_vision", ("embed_vision", "vision_tower"), sees_whole_image="sliding"),
}


@dataclass(frozen=True, slots=True)
class Mmproj:
    """A GGUF file that holds what sees images alone. rules: by which pixels become its inputs."""

    file: "GgufFile"
    rules: ImageRules


@dataclass(frozen=True, slots=True)
class ImagePart:
    """path: of its folder, or of its mmproj file. model_type: of the whole.

    args: of its config class, but for those of its text model.
    token_id, sees_whole_image: see `ImagesPart`. pad_id: see `ImageRows`. sections: of a rotary embedding with axes,
    how many frequencies each one turns. mmproj: None of one in a folder.
    """

    path: Path
    model_type: str
    args: Mapping[str, Any]
    token_id: int
    sees_whole_image: str
    pad_id: int = 0
    sections: tuple[int, ...] = ()
    mmproj: Mmproj | None = None

    @property
    def files(self) -> list[Path]:
        """Those that are read of it besides the model's own."""
        return [] if self.mmproj is None else self.mmproj.file.paths

    @property
    def family(self) -> ImageFamily:
        return FAMILIES[self.model_type]


def find_images(
    source: Source, on_message: Callable[[str], None] = lambda line: None, mmproj: Path | None = None
) -> ImagePart | None:
    """What sees images for a model; None where nothing does, or nothing says how pixels become its input.

    on_message: gets a line where something could, and does not. mmproj: the file that sees for a GGUF file's model;
    None takes the one beside it.
    Raises ExportError or UnsupportedArchitectureError where it cannot be exported or does not fit the model, and
    ConfigError for an mmproj that is of no use.
    """
    if not isinstance(source, HuggingFaceSource):
        from reader_edge_export.sources.gguf.gguf_source import GgufSource
        from reader_edge_export.sources.gguf.mmproj import find_mmproj

        assert isinstance(source, GgufSource)
        return find_mmproj(source, mmproj, on_message)
    if mmproj is not None:
        raise ConfigError(f"mmproj is for GGUF files, and '{source.short_name}' is none: leave '{mmproj}' out.")
    config = read_json(source.folder / "config.json")
    model_type, vision = str(config.get("model_type")), config.get("vision_config")
    if vision is None or not sees_images(source):
        return None
    family = FAMILIES[model_type]
    if not any((source.folder / name).is_file() for name in _PROCESSOR_NAMES):
        on_message(
            f"'{source.folder}' sees images, but has neither {' nor '.join(_PROCESSOR_NAMES)}, which say how: the "
            "package will read texts alone, unless you add the file and export again."
        )
        return None
    for key, wanted in family.fixed.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedArchitectureError(
                f"config.json sets {key} to {reprlib.repr(config[key])} instead of {wanted}, which images cannot have "
                f"here: {_REMEDY}."
            )
    text = given_text_config(config)
    sections = _sections(text, family.sections) if family.sections else ()
    seen = family.sees_whole_image
    if seen == "sliding" and text.get("use_bidirectional_attention") != "vision":
        seen = "none"
    args = {"vision_config": _vision_args(family, vision), **{key: config[key] for key in family.keys if key in config}}
    token_id, pad_id = _token_id(config, source.config_vocab_size), text.get("pad_token_id") or 0
    return ImagePart(source.folder, model_type, args, token_id, seen, pad_id, sections)


def sees_images(source: Source) -> bool:
    """Whether a folder has what sees images, of a kind that is known here."""
    if not isinstance(source, HuggingFaceSource) or not source.is_part:
        return False
    family = FAMILIES.get(str(read_json(source.folder / "config.json").get("model_type")))
    return family is not None and set(family.modules) <= set(source.left_out)


def without_modules(left_out: Iterable[str], images: ImagePart | None) -> tuple[str, ...]:
    """Of the modules that a text model leaves out, those that are left out with images too."""
    return tuple(name for name in left_out if images is None or name not in images.family.modules)


def _vision_args(family: ImageFamily, vision: object) -> dict[str, Any]:
    if not isinstance(vision, dict):
        raise ExportError(f"config.json gives vision_config as {reprlib.repr(vision)}: it must be an object.")
    found = vision.get("model_type", family.vision_type)
    if found not in (family.vision_type, *family.other_types):
        raise UnsupportedArchitectureError(
            f"The vision_config is that of a {found!r:.80}, of which {family.vision_type} can be exported: {_REMEDY}."
        )
    checked = {**vision, "model_type": family.vision_type}
    try:
        check_keys(checked)
    except UnsupportedArchitectureError as error:
        raise UnsupportedArchitectureError(f"{str(error).removesuffix('.')}, or {_REMEDY}.") from None
    num_layers = next((checked[key] for key in _DEPTHS if key in checked), MAX_LAYERS)
    if num_layers > MAX_LAYERS:
        raise ExportError(f"vision_config has {num_layers} layers, and {MAX_LAYERS} at most: fetch the model again.")
    deepstack = checked.get("deepstack_visual_indexes", [])
    if list(deepstack) != sorted(set(deepstack) & set(range(num_layers))):
        raise ExportError(
            f"vision_config gives deepstack_visual_indexes as {reprlib.repr(deepstack)}, which must be layers of its "
            f"{num_layers} in their order: fetch the model again."
        )
    return {key: checked[key] for key in ("model_type", *READ[family.vision_type]) if key in checked}


def _token_id(config: Mapping[str, Any], vocab_size: int) -> int:
    token_id = next((config[key] for key in _TOKEN_KEYS if config.get(key) is not None), None)
    if type(token_id) is not int or not 0 <= token_id < vocab_size:
        raise ExportError(
            f"config.json gives image_token_id as {token_id!r:.80}, which is no token of the model: correct it, or "
            f"{_REMEDY}."
        )
    return token_id


def _sections(text: Mapping[str, Any], supposed: Sequence[int]) -> tuple[int, ...]:
    """Of Qwen's mRoPE."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    sections = rope.get("mrope_section") or list(supposed)
    is_usable = isinstance(sections, list) and len(sections) == 3
    if not is_usable or not all(type(each) is int and 0 <= each <= 1 << 12 for each in sections):
        raise ExportError(f"config.json gives mrope_section as {reprlib.repr(sections)}: it must be three counts.")
    return tuple(sections)
