"""Options of an export, and its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reader_edge_export.sources.architectures import MIN_CONTEXT
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.iree.target_machine import IREE_ATTENTION, TARGETS, targets_here
from reader_edge_runtime.package.manifest import (
    ATTENTIONS,
    HALF_PRECISIONS,
    KV_TYPES,
    PRECISIONS,
    QUANTIZED_PRECISIONS,
    ROW_ATTENTIONS,
)

AUTO = "auto"
CHECKS = ("none", "quick", "full")
ONNX_RUNTIME, IREE = "onnxruntime", "iree"

_QUANTIZED = (AUTO, *QUANTIZED_PRECISIONS)
IMAGE_PRECISIONS = (AUTO, "fp32", "int8", "int8-a16")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to export; checked when made. Raises ConfigError.

    precision: one of PRECISIONS, or AUTO, see `precision_for`.
    attention: one of ATTENTIONS ("exact" keeps speculation lossless bit for bit).
    max_context: tokens of context at most; None takes the model's own limit.
    force: replace an existing package.
    kv: how the KV cache is stored, one of KV_TYPES; None takes `default_kv` of the precision and attention.
    check: one of CHECKS, how much is measured before the package is used, or AUTO, see `check_for`.
    engine: what the package is for, ONNX_RUNTIME or IREE, which gets MLIR and modules beside the graph.
    target: of IREE, a kind of machine, one of `target_machine.TARGETS`; None takes this machine's.
    speculator: a folder with a trained speculator, or AUTO for the layers for later tokens of the model itself.
    calibration_text: a text file that int8, int8-a16 and int4 are calibrated on; None takes the bundled texts.
    chat_template: a Jinja file; None takes the model's own.
    has_images: whether what sees images comes along, of a model that has it and is exported for CPUs.
    mmproj: the file that sees for the model of a GGUF file; None takes the one that lies beside it, if any.
    image_precision: of its matrices, one of IMAGE_PRECISIONS; see `tower_precision`.
    adapter: a PEFT folder, or a GGUF file of an adapter, whose LoRA is merged into the model's weights.
    takes_adapters: whether requests may bring adapters of low rank at run time, each its own.
    """

    precision: str = AUTO
    attention: str = "exact"
    max_context: int | None = None
    force: bool = False
    calibration_text: Path | None = None
    kv: str | None = None
    check: str = "full"
    engine: str = ONNX_RUNTIME
    target: str | None = None
    speculator: str | Path | None = None
    chat_template: Path | None = None
    has_images: bool = True
    mmproj: Path | None = None
    image_precision: str = AUTO
    adapter: str | Path | None = None
    takes_adapters: bool = False

    def __post_init__(self) -> None:
        if self.precision not in (AUTO, *PRECISIONS):
            raise ConfigError(f"precision is {self.precision!r}, but must be one of {', '.join((AUTO, *PRECISIONS))}.")
        if self.attention not in ATTENTIONS:
            raise ConfigError(f"attention is {self.attention!r}, but must be one of {', '.join(ATTENTIONS)}.")
        if self.max_context is not None and self.max_context < MIN_CONTEXT:
            raise ConfigError(f"max_context is {self.max_context!r}, but must be {MIN_CONTEXT} or more.")
        if self.attention == "portable" and self.precision != AUTO and not PRECISIONS[self.precision].is_portable:
            raise ConfigError(
                f"precision {self.precision!r} has no portable form: use 'fp16' or 'int8', or another attention."
            )
        if self.attention == "portable-exact" and self.precision not in (AUTO, "fp32"):
            raise ConfigError(f"attention {self.attention!r} needs precision 'fp32', not {self.precision!r}.")
        is_calibrated = self.precision == AUTO or PRECISIONS[self.precision].is_calibrated
        if self.calibration_text is not None and not is_calibrated:
            raise ConfigError(f"precision {self.precision!r} is not calibrated: leave calibration_text out.")
        if self.check not in (AUTO, *CHECKS):
            raise ConfigError(f"check is {self.check!r}, but must be one of {', '.join((AUTO, *CHECKS))}.")
        if self.kv is not None:
            self._check_kv()
        self._check_images()
        self._check_engine()
        self._check_parts()

    def _check_images(self) -> None:
        if self.image_precision not in IMAGE_PRECISIONS:
            names = ", ".join(IMAGE_PRECISIONS)
            raise ConfigError(f"image_precision is {self.image_precision!r}, but must be one of {names}.")
        if self.image_precision != AUTO and not self.has_images:
            raise ConfigError(f"image_precision is {self.image_precision!r}, but images are left out: leave it out.")

    def _check_parts(self) -> None:
        """Of what comes along."""
        if self.mmproj is not None and not self.can_see:
            raise ConfigError(
                f"mmproj is '{self.mmproj}', but these options leave out what sees images: leave mmproj out."
            )
        if self.takes_adapters and (self.attention != "exact" or self._is_half):
            raise ConfigError(
                f"takes_adapters needs attention 'exact' and precision fp32, {', '.join(QUANTIZED_PRECISIONS)}, not "
                f"{self.attention!r} and {self.precision!r}: leave it out, or merge one adapter."
            )
        if self.speculator is None:
            return
        if self.speculator == "":
            raise ConfigError("speculator is '', which names no folder: give one, or leave speculator out.")
        if self.engine == IREE:
            given = f"engine {IREE!r}"
        elif self.attention != "exact":
            given = f"attention {self.attention!r}"
        elif self._is_half:
            given = f"precision {self.precision!r}"
        else:
            return
        raise ConfigError(f"{given} has no states that a speculator could read: leave speculator out.")

    def _check_engine(self) -> None:
        if self.engine not in (ONNX_RUNTIME, IREE):
            raise ConfigError(f"engine is {self.engine!r}, but must be {ONNX_RUNTIME!r} or {IREE!r}.")
        if self.engine != IREE and self.target is not None:
            raise ConfigError(f"target {self.target!r} needs engine {IREE!r}: leave it out.")
        if self.target is not None and self.target not in TARGETS:
            raise ConfigError(f"target is {self.target!r}, but must be one of {', '.join(TARGETS)}.")
        if self.engine == IREE and self.attention != IREE_ATTENTION:
            raise ConfigError(
                f"engine {IREE!r} needs attention {IREE_ATTENTION!r}, not {self.attention!r}: leave attention out."
            )
        if self.engine == IREE and self.precision not in (AUTO, "fp32"):
            raise ConfigError(f"engine {IREE!r} needs precision 'fp32', not {self.precision!r}: leave precision out.")

    def _check_kv(self) -> None:
        if self.kv not in KV_TYPES:
            raise ConfigError(f"kv is {self.kv!r}, but must be one of {', '.join(KV_TYPES)}.")
        if self.kv == "int8" and not _can_round_cache(self.precision, self.attention):
            raise ConfigError(
                f"kv 'int8' needs attention 'exact' and precision {', '.join(QUANTIZED_PRECISIONS)}, "
                f"not {self.attention!r} and {self.precision!r}: leave kv out."
            )
        if self.precision in HALF_PRECISIONS:
            raise ConfigError(f"precision {self.precision!r} has a KV cache of its own type: leave kv out.")
        if self.kv == "fp16" and self.attention != "exact":
            raise ConfigError(f"kv 'fp16' needs attention 'exact', not {self.attention!r}: leave kv out.")

    def precision_for(self, is_kept: bool) -> str:
        """One of PRECISIONS. is_kept: whether most of a source's weights can stay as they are.

        AUTO is "keep" then, and else "int8"; also where a text to calibrate on is given, or a portable graph wanted.
        "portable-exact", and packages for IREE, come in "fp32" alone.
        """
        if self.precision != AUTO:
            return self.precision
        if self.attention == "portable-exact" or self.engine == IREE:
            return "fp32"
        stays = is_kept and self.calibration_text is None and self.attention not in ROW_ATTENTIONS
        return "keep" if stays else "int8"

    def check_for(self, precision: str) -> str:
        """One of CHECKS. AUTO is "none" of weights that stay as they are, and else "quick"."""
        if self.check != AUTO:
            return self.check
        return "none" if PRECISIONS[precision].keeps_blocks else "quick"

    @property
    def iree_target(self) -> str:
        """The name of IREE's target. Raises ConfigError where none is given and this machine is none of them."""
        here = [target.name for target in targets_here()]
        if self.target is None and not here:
            raise ConfigError(f"This machine is no target of IREE's: choose one of {', '.join(TARGETS)}.")
        return self.target or here[0]

    @property
    def kv_dtype(self) -> str:
        """The numpy name of the KV cache's type."""
        if self._is_half:
            return HALF_PRECISIONS[self.precision]
        return KV_TYPES[self.kv or default_kv(self.precision, self.attention)]

    @property
    def is_for_devices(self) -> bool:
        """Whether the package gets what a GPU needs: its cache's mover, and few numbers to read after a pass."""
        return self._is_half or (self.precision, self.attention) == ("fp32", "fast")

    @property
    def can_see(self) -> bool:
        """Whether images are wanted, and these options leave room for them."""
        return self.has_images and self.attention == "exact" and not self.is_for_devices

    @property
    def tower_precision(self) -> str:
        """Of what sees images, one of PRECISIONS. AUTO is that of the text model, and "int8" beside four bits."""
        if self.image_precision != AUTO:
            return self.image_precision
        return "int8" if PRECISIONS[self.precision].is_four_bit else self.precision

    @property
    def _is_half(self) -> bool:
        """Whether activations and the KV cache are in half precision, and not matrices alone."""
        return self.precision in HALF_PRECISIONS and self.attention not in ROW_ATTENTIONS


def default_attention(engine: str) -> str:
    """One of ATTENTIONS."""
    return IREE_ATTENTION if engine == IREE else "exact"


def default_kv(precision: str, attention: str) -> str:
    """How the KV cache is usually stored, where that is not for the precision to say."""
    return "int8" if _can_round_cache(precision, attention) else "fp32"


def _can_round_cache(precision: str, attention: str) -> bool:
    return precision in _QUANTIZED and attention == "exact"


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written: the package's folder and size, the figures of its checks, the seconds of each phase.

    warning: one sentence where the package strays further from its source than its precision should.
    speculator_warning: one where its speculator seems to be another model's.
    weight_types: how the source stored its weights, most bytes first; the checks' figures are against it in fp32.
    kept_types, other_types: with precision "keep", how many matrices of each type stayed as they are, and became int8.
    adapted_chats, different_chats, repaired_chats: names of conversations, as of `ChatCheck`. left_out: modules of the
    source that are not for texts. ends: tokens that end an answer; without one it runs to its limit. sampling: as of
    `Manifest`. other_choices: what the source asks for besides when tokens are chosen, which is not done.
    adapter: the name of the one that was merged, and how many matrices it changed.
    """

    out: Path
    num_bytes: int
    precision: str
    attention: str
    checks: Mapping[str, float]
    phase_seconds: Mapping[str, float]
    warning: str | None = None
    weight_types: tuple[str, ...] = ()
    kept_types: Mapping[str, int] = field(default_factory=dict)
    other_types: Mapping[str, int] = field(default_factory=dict)
    adapted_chats: tuple[str, ...] = ()
    different_chats: tuple[str, ...] = ()
    repaired_chats: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    speculator_warning: str | None = None
    ends: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    other_choices: tuple[str, ...] = ()
    adapter: tuple[str, int] | None = None
