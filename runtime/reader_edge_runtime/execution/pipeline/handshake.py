"""The handshake between machines of a pipeline: whether they have stages of one model, and speak one version.

Messages on a link are a header, then a frame and a residual stream, or a greeting: facts by their names.
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Annotated

from msgspec import Meta

from reader_edge_runtime.errors import FrameError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.package_parts import StagePart
from reader_edge_runtime.package.pipeline_file import is_address
from reader_edge_runtime.untrusted.frame_codec import Frame, FrameCodec
from reader_edge_runtime.untrusted.untrusted_json import PRINTABLE

PROTOCOL = 3
MICROSECONDS = "µs of a pass"  # of one node, beside a stage's facts
HELLO, WELCOME, PASS, RESULT, FAULT = range(1, 6)

_Fact = Annotated[str, Meta(max_length=512, pattern=PRINTABLE)]


class Header(Frame):
    """What a message is, whose, and of which pass."""

    what: Annotated[int, Meta(ge=HELLO, le=FAULT)]
    client: Annotated[bytes, Meta(min_length=16, max_length=16)]
    number: Annotated[int, Meta(ge=0)]


HEADERS: FrameCodec[Header] = FrameCodec(Header, b"RH\x03", 64, "pipelines")
FACT_FRAMES: FrameCodec[dict[str, str]] = FrameCodec(dict[_Fact, _Fact], b"RG\x03", 1 << 14, "pipelines")


def facts_of(stage: HostStage) -> dict[str, str]:
    """What a stage says of itself, in texts that can be shown."""
    part = stage.part
    return {
        "protocol": str(PROTOCOL),
        "model": part.whole,
        "stage": f"{part.number} of {part.num_stages}",
        "first layer": str(part.first_layer),
        "next layer": str(part.first_layer + stage.manifest.num_layers),
        "reader-edge": _version("reader-edge"),
        "ONNX Runtime": str(ort.__version__),
        "kernels": stage.pass_facts[-1][:16] or "none",
        "instruction set": stage.instructions or "none",
    }


def check_facts(found: Mapping[str, str], wanted: Mapping[str, str], address: str) -> str | None:
    """What differs between a stage and the one here, and may change bits; None where nothing does.

    wanted: what the stage here says, with the other one's number. Raises ProviderError for another model, stage or
    version.
    """
    for name in ("protocol", "model", "stage", "reader-edge", "ONNX Runtime"):
        if found.get(name) != wanted[name]:
            raise ProviderError(
                f"At {address} is {name} {found.get(name, 'unknown'):.64}, and here {wanted[name]:.64}: all boxes need "
                "stages of one split, and the same versions."
            )
    odd = [name for name in ("instruction set", "kernels") if found.get(name) != wanted[name]]
    if not odd:
        return None
    differences = ", ".join(f"{name} {found.get(name, 'unknown'):.64} there, {wanted[name]} here" for name in odd)
    return f"The stage at {address} runs other kernels ({differences}): answers may differ from those of one box."


def check_layers(found: Mapping[str, Mapping[str, str]], last: Mapping[str, str]) -> None:
    """Raise ProviderError unless stages have each layer once: one model may have been cut twice, at other layers.

    found: what they say, by their addresses in turn. last: what the stage here says.
    """
    layer = "0"
    for place, facts in [*((f"at {address}", each) for address, each in found.items()), ("here", last)]:
        first = facts.get("first layer", "unknown")
        if first != layer:
            raise ProviderError(
                f"The stage {place} begins with layer {first:.64}, where layer {layer:.64} is next: all boxes need "
                "stages of one split."
            )
        layer = facts.get("next layer", "unknown")


def stage_name(part: StagePart, number: int) -> str:
    return f"{number} of {part.num_stages}"


def next_of(greeting: Mapping[str, str]) -> str | None:
    """Where a stage hands on to; None for the last of those that follow. Raises FrameError."""
    address = greeting.get("next") or None
    if address is not None and not is_address(address):
        raise FrameError(f"A greeting names {address!r:.80} as the next stage.")
    return address


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
