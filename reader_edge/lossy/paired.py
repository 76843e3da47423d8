"""Figures of paired trials: how sure a share is, and whether two ways differ."""

import math

_Z = 1.959964  # of 95 %


def wilson(num_right: int, num: int) -> tuple[float, float]:
    """The interval that holds a share with 95 % confidence (Wilson, 1927); (0, 1) of nothing."""
    if not num:
        return 0.0, 1.0
    share, spread = num_right / num, _Z * _Z / num
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / num + spread / (4 * num))
    return middle - half, middle + half


def mcnemar(num_lost: int, num_won: int) -> float:
    """The chance that so uneven a split of changed answers comes of luck alone, exact and two-sided (McNemar, 1947)."""
    num, least = num_lost + num_won, min(num_lost, num_won)
    num_as_uneven = 2 * sum(math.comb(num, k) for k in range(least + 1))
    num_ways: int = 1 << num
    return min(1.0, num_as_uneven / num_ways)
