"""What sees images beside the GGUF file of a text model: an mmproj file, as llama.cpp's converters write it.

It must fit the text model, by its kind and by the width of its features.
"""

from collections.abc import Callable
from pathlib import Path

from reader_edge_export.sources.find import mmproj_files
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.layer_sizes import architecture_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.projectors import PROJECTORS, REMEDY, Opened, Projector
from reader_edge_export.sources.gguf.tensor_kinds import is_dequantizable
from reader_edge_export.sources.image_part import FAMILIES, ImagePart, Mmproj
from reader_edge_runtime.errors import GgufError, UnsupportedArchitectureError
from reader_edge_runtime.package.images import ImageRules, placeholder_of
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.untrusted_json import converted
from reader_edge_runtime.untrusted.user_input import given_path

_MAX_SECTION = 1 << 12
_INERT = {"has_vision_encoder": True, "has_text_encoder": False, "has_llava_projector": True}
_SOUNDS = ("audio.", "has_audio_encoder")  # of models that hear too, which is left out


def find_mmproj(source: GgufSource, named: Path | None, on_message: Callable[[str], None]) -> ImagePart | None:
    """What sees images for the model of a file: what is named, or lies beside it; None where nothing does.

    on_message: gets a line where the model has a token for images, and nothing lies beside it.
    Raises GgufError or UnsupportedArchitectureError where it does not fit the model, and for several beside it.
    """
    path = _beside(source, on_message) if named is None else given_path(named, "mmproj")
    if path is None:
        return None
    check_plain_file(path, GgufError, REMEDY)
    file = GgufFile.open(path)
    opened = Opened(file, Metadata(file, "clip"), int(source.config["hidden_size"]))
    projector, model_type = _projector_of(opened, source)
    _check_width(opened, source)
    for kind in {tensor.kind for tensor in file.tensors.values()}:
        if not is_dequantizable(kind):
            raise file.error(f"has weights of the type {kind.name}, whose values are not known")
    vision, beside, numbers = projector.read(opened)
    sounds = [key for key in file.metadata if key.removeprefix("clip.").startswith(_SOUNDS)]
    opened.values.check_all_read([key.removeprefix("clip.") for key in sounds], _INERT)
    family = FAMILIES[model_type]
    fields = {"family": _family_of(model_type), "patch_size": vision["patch_size"], "filter": projector.filter}
    rules = converted({**fields, **numbers}, ImageRules, f"'{path}'", GgufError, REMEDY)
    seen = family.sees_whole_image
    if seen == "sliding" and source.config["hidden_size_per_layer_input"]:
        seen = "none"  # of Gemma 4 E2B and E4B alone, of which no file tells
    token_id = _token_id(source, model_type)
    if token_id is None:
        raise source.file.error(f"has no token {rules.placeholder!r}, in whose place images come", REMEDY)
    pad_id = Metadata(source.file, "tokenizer.ggml").size("padding_token_id", 0, least=0)
    args = {"vision_config": {"model_type": family.vision_type, **vision}, **beside}
    sections = _sections(source) if family.sections else ()
    return ImagePart(path, model_type, args, token_id, seen, pad_id, sections, Mmproj(file, rules))


def _beside(source: GgufSource, on_message: Callable[[str], None]) -> Path | None:
    """The one file beside a model that sees. Raises GgufError where there are several."""
    architecture = architecture_of(source.file)
    wholes = [each.wholes[architecture] for each in PROJECTORS.values() if architecture in each.wholes]
    if all(_token_id(source, model_type) is None for model_type in wholes):
        return None  # it reads texts alone, whatever lies there
    found = mmproj_files(source.file.path)
    if len(found) > 1:
        names = " and ".join(f"'{path.name}'" for path in found[:4])
        raise GgufError(f"'{source.file.path}' has {names} beside it, of which one is to see images for it: {REMEDY}.")
    if not found:
        on_message(
            f"'{source.file.path}' has a token for images, and no file mmproj*.gguf beside it that sees them: the "
            "package will read texts alone, unless you name one (--mmproj FILE)."
        )
        return None
    return found[0]


def _projector_of(opened: Opened, source: GgufSource) -> tuple[Projector, str]:
    """Of a file, and the model_type of the whole that it makes with the text model."""
    file, values = opened.file, opened.values
    architecture = architecture_of(file)
    if architecture != "clip" or Metadata(file, "general").text("type", "mmproj") != "mmproj":
        raise file.error(f"holds a {architecture!r:.80}, and nothing that sees images", REMEDY)
    key = "projector_type" if values.has("projector_type") else "vision.projector_type"
    kind = values.text(key)
    if kind not in PROJECTORS:
        raise UnsupportedArchitectureError(
            f"'{file.path}' sees images by {kind!r:.80}, of which {', '.join(PROJECTORS)} can be exported: {REMEDY}."
        )
    own, projector = architecture_of(source.file), PROJECTORS[kind]
    if own not in projector.wholes:
        fitting = " or ".join(projector.wholes)
        raise file.error(
            f"sees images by {kind!r} for models of {fitting}, and '{source.file.path.name}' is one of {own}", REMEDY
        )
    return projector, projector.wholes[own]


def _check_width(opened: Opened, source: GgufSource) -> None:
    width = opened.size("projection_dim")
    if width != opened.width:
        own = f"and '{source.file.path.name}' has {opened.width}"
        raise opened.file.error(f"makes features of {width} numbers, {own}", REMEDY)


def _token_id(source: GgufSource, model_type: str) -> int | None:
    """Of the token in whose place a feature comes; None where the model's vocabulary has none."""
    tokens, placeholder = source.vocabulary.tokens, placeholder_of(_family_of(model_type))
    return tokens.index(placeholder) if placeholder in tokens else None


def _sections(source: GgufSource) -> tuple[int, ...]:
    sections = Metadata(source.file, architecture_of(source.file)).sizes("rope.dimension_sections")
    if not 3 <= len(sections) <= 4 or not all(0 <= each <= _MAX_SECTION for each in sections):
        raise source.file.error(f"gives rope.dimension_sections as {sections!r:.80}, which must be three counts")
    return tuple(sections[:3])


def _family_of(model_type: str) -> str:
    return model_type.removesuffix("_moe")
