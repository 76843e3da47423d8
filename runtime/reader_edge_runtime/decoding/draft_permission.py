"""Whether an engine may draft, decided once at its start by its options, its attention and the width probe."""

from dataclasses import dataclass, replace
from typing import Literal

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS

Scope = Literal["all", "greedy", "none"]


@dataclass(frozen=True, slots=True)
class DraftPermission:
    """scope: which requests may draft: all; greedy ones alone, whose near ties are decided again; or none.

    reason: of the scope, to go behind a colon. is_trial: drafts although answers may change, for proofs and
    measurements; no engine takes it. max_rows: nodes of a drafted pass, over all its trees; None: any number.
    """

    scope: Scope
    reason: str
    is_trial: bool = False
    max_rows: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether any request may draft."""
        return self.scope != "none"

    def allows(self, request: Request) -> bool:
        """Whether a request may draft. A near tie shows in the best logits alone: it must choose from these."""
        if self.scope == "greedy":
            return request.takes_best and request.constraint is None
        return self.is_on

    def max_nodes(self, num_trees: int) -> int | None:
        """Nodes that each of so many trees may have; None: any number. They are padded to a power of two."""
        if self.max_rows is None:
            return None
        share = self.max_rows // num_trees
        return 1 << (share.bit_length() - 1) if share else 1


UNCHECKED = DraftPermission("all", "the width probe was left out")
INVARIANT = DraftPermission("all", "passes of every width give the same bits here")
INEXACT = DraftPermission("all", "this package promises no bits, and drafts may change a near tie")
GUARDED = DraftPermission("greedy", "wide passes give other bits here; near ties are decided by single passes")
UNWANTED = DraftPermission("none", "it was switched off")
UNSOUND = DraftPermission("none", "wide passes give other bits here")
TRIAL = DraftPermission("all", "this is a trial of what drafts would change", is_trial=True)


def draft_permission(config: EngineConfig, attention: str, report: WidthReport | None) -> DraftPermission:
    """What a config wants, a package's attention promises and the width probe found, taken together."""
    if not config.is_drafted:
        return UNWANTED
    if report is None:
        return UNCHECKED
    if report.is_invariant:
        if report.max_rows is None:
            return INVARIANT
        reason = f"passes of up to {report.max_rows} nodes give the same bits here, and drafts keep to these"
        return replace(INVARIANT, reason=reason, max_rows=report.max_rows)
    if config.is_near_tie_guarded:
        return GUARDED
    return UNSOUND if attention in EXACT_ATTENTIONS else INEXACT
