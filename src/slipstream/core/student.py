"""Student's quantiles, for intervals from few values."""

from __future__ import annotations

# Student's 97.5 % quantiles for 1 to 9 degrees of freedom; beyond, `student_quantile` expands around the normal one
QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
NORMAL = 1.959964


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution, to three digits."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
