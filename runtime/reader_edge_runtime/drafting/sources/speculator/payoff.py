"""Whether a speculator can pay at all beside a target on this machine: one rule, for engines and before a training."""

from collections.abc import Callable

PASS_NODES = 8  # of a pass of the target with drafts
# Measured: docs/explanation/measured/drafts/speculators.md
TOKENS_A_PASS, USUALLY_ADDED = 2.0, 0.25  # without a speculator, and by one that is asked where that pays
STEP_NODES = (2, 4)  # nodes of the passes of the speculator that asking takes, before it was asked
_BESIDE_S = 6e-4  # beside them: the tree is drafted again behind each, and now and then without it


def asking_seconds(seconds: Callable[[int], float]) -> float:
    """What asking takes in a step. seconds: of a pass of the speculator, by its nodes; called with STEP_NODES."""
    return _BESIDE_S + sum(map(seconds, STEP_NODES))


def needed_tokens(asking_s: float, pass_s: float) -> float:
    """Tokens that asking has to add to a pass. pass_s: of the target, over PASS_NODES."""
    return TOKENS_A_PASS * asking_s / pass_s


def can_pay(asking_s: float, pass_s: float) -> bool:
    """Whether what speculators usually add makes up for what asking takes."""
    return needed_tokens(asking_s, pass_s) <= USUALLY_ADDED
