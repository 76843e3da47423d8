"""What is wrong with a package that is not as close to its source as its precision should be, or with a speculator."""

from collections.abc import Mapping

from reader_edge_runtime.package.manifest import PRECISIONS
from reader_edge_runtime.package.package_parts import SPECULATOR_AGREEMENT

_FEWEST_SHARED = 0.05  # places at which a speculator that was trained for its target names the same token


def quality_warning(precision: str, checks: Mapping[str, float]) -> str | None:
    """One sentence where a package's figures, if it was measured, are beyond its precision's limits."""
    limit = PRECISIONS[precision].limit
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
