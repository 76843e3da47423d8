"""Why an engine for graphics processors may see none: it looks for them in /sys."""

from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings

_CARDS = "sys/class/drm"


def check_graphics(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether graphics processors are listed with their makers. Nothing is said where there are none."""
    cards = sorted(card.name for card in (surroundings.root / _CARDS).glob("card[0-9]*") if "-" not in card.name)
    nameless = [card for card in cards if surroundings.text(f"{_CARDS}/{card}/device/vendor") is None]
    if nameless:
        yield Finding(
            "graphics",
            Severity.NOTE,
            f"The system does not tell who made {', '.join(nameless)}, of which ONNX Runtime may warn.",
            "Nothing, on the CPU; engines for graphics processors need a driver that fills in device/vendor.",
        )
    elif not cards and surroundings.has("dev/dxg"):
        yield Finding(
            "graphics",
            Severity.NOTE,
            "Windows lends this Linux a graphics processor that is not listed in /sys, so some engines find none.",
            "Run reader-edge on Windows itself for those; the CPU, and CUDA, work here.",
        )
