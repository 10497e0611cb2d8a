"""The table of `slipstream plan predictors`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from slipstream.plan.predictors.score import PredictorScore


def predictor_table(scores: Sequence[PredictorScore]) -> Table:
    """The best first."""
    table = Table(box=None, pad_edge=False)
    for name in ("predictor", "log-loss", "calibration error", "tokens per plain pass", "predicted → observed (slots)"):
        table.add_column(name, justify="left" if name in ("predictor", "predicted → observed (slots)") else "right")
    for each in scores:
        bins = "  ".join(f"{p:.2f} → {observed:.2f} ({count})" for p, observed, count in each.calibration)
        figures = f"{each.log_loss:.3f}", f"{each.calibration_error:.3f}", f"{each.speed:.2f}"
        table.add_row(each.name, *figures, bins)
    return table
