"""How close a package has to be to its source, by precision, and a speculator to its target, and what else to do."""

from collections.abc import Mapping
from dataclasses import dataclass

from reader_edge_runtime.package.package_parts import SPECULATOR_AGREEMENT


@dataclass(frozen=True, slots=True)
class Limit:
    """Up to where a precision loses what is usual for it. closer: the precision to export with instead."""

    mean_kl_nats: float
    top1_agreement: float
    closer: str


# Eight bits done well cost 0.001 to 0.005 nats, five bits 0.01 to 0.02, four bits 0.03 to 0.08, three bits 0.1 and
# more: llama.cpp's figures for an 8B model; small models lose more (benchmarks/fidelity/FIDELITY.md). A limit stands
# where a package loses what one of fewer bits may lose; equal first choices are what that does to plain answers.
LIMITS = {
    "fp16": Limit(0.002, 0.98, "fp32"),
    "bf16": Limit(0.01, 0.96, "fp32"),
    "int8": Limit(0.02, 0.95, "int8-a16"),
    "int8-a16": Limit(0.01, 0.96, "fp32"),
    "int4": Limit(0.1, 0.85, "int8"),
    "keep": Limit(0.02, 0.95, "int8-a16"),  # of weights as the source has them: rows alone are rounded
}

_FEWEST_SHARED = 0.05  # places at which a speculator that was trained for its target names the same token


def quality_warning(precision: str, checks: Mapping[str, float]) -> str | None:
    """One sentence where a package's figures, if it was measured, are beyond its precision's limits."""
    limit = LIMITS.get(precision)
    if limit is None or "mean_kl_nats" not in checks:
        return None
    kl, top1 = checks["mean_kl_nats"], checks["top1_agreement"]
    if kl <= limit.mean_kl_nats and top1 >= limit.top1_agreement:
        return None
    return (
        f"{precision} costs this model more than it should: another first choice than the source's for "
        f"{100 * (1 - top1):.1f} % of the tokens (limit {100 * (1 - limit.top1_agreement):.0f} %), mean KL divergence "
        f"{kl:.2g} nats (limit {limit.mean_kl_nats:g}). Its answers will differ from the source's: "
        f"--precision {limit.closer} stays closer."
    )


def speculator_warning(checks: Mapping[str, float]) -> str | None:
    """One sentence where a speculator, if there is one and it was measured, predicts too few of the target's tokens."""
    agreement = checks.get(SPECULATOR_AGREEMENT)
    if agreement is None or agreement >= _FEWEST_SHARED:
        return None
    return (
        f"This speculator's best token is the model's at {100 * agreement:.1f} % of places: it was probably trained "
        "for another model, and will hardly be used."
    )
