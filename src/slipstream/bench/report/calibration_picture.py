"""Calibration curves of predictors as one SVG file: the observed acceptance over the predicted one."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.bench.report.forecast_picture import COLOURS, STYLE
from slipstream.bench.report.svg import Plot, ticks
from slipstream.plan.predictors.score import PredictorScore

WIDTH, HEIGHT, LINE = 560, 320, 16


def calibration_picture(scores: Sequence[PredictorScore]) -> str:
    """One line for each predictor. On the diagonal, predictions are right on average."""
    plot = Plot("observed acceptance over predicted acceptance", (0.0, 1.0), (0.0, 1.0), WIDTH - 160, HEIGHT)
    marks = ticks(0.0, 1.0)
    plot.grid([(mark, f"{mark:g}") for mark in marks], marks, "predicted acceptance")
    plot.line([(0.0, 0.0), (1.0, 1.0)], "#bbbbbb")
    names = []
    for number, score in enumerate(scores):
        colour = COLOURS[number % len(COLOURS)]
        plot.line([(predicted, observed) for predicted, observed, _ in score.calibration], colour, number)
        for predicted, observed, count in score.calibration:
            plot.mark((predicted, observed), colour, number, f"{score.name}: {count} slots")
        place = f'x="{WIDTH - 150}" y="{40 + LINE * number}" style="fill:{colour}"'
        names.append(f"<text {place}>{score.name} (log-loss {score.log_loss:.3f})</text>")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    drawn = plot.svg().replace("<svg ", f'<svg width="{plot.width}" height="{plot.height}" ', 1)
    return f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{drawn}{"".join(names)}</svg>\n'
