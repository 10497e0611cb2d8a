"""`slipstream plan advise`: what to use, what it brings, and the command to run, in five lines."""

from __future__ import annotations

from typing import Any

from slipstream.models.target import Target
from slipstream.plan.passes.figures import Figures


def advice(target: Target, figures: Figures) -> dict[str, Any]:
    """The best drafter and depth of what was measured, as five lines."""
    best, model = figures.best_drafter(), target.files.name
    measured = f"Measured here: plain decoding of {target.label} gives {figures.plain:.1f} tokens/s at batch 1."
    if best is None:
        return {
            "drafter": "none", "depth": 0, "speedup": 1.0,
            "lines": [
                measured,
                f"No drafter is faster by 2 % or more: {', '.join(figures.drafters)} were tried.",
                "Use plain decoding.",
                "It brings no speed-up, and loses nothing.",
                f"Run: slipstream generate -m {model} -d none 'your prompt'",
            ],
        }  # fmt: skip
    point = figures.best_depth(best)
    gain = point.tokens_per_second / figures.plain
    return {
        "drafter": best, "depth": point.depth, "speedup": gain,
        "lines": [
            measured,
            f"Use the drafter {best}; the policy chooses the depth, which was best at {point.depth} on two prompts.",
            f"It gives about {point.tokens_per_second:.1f} tokens/s, {gain:.2f} times as many, on code and chat.",
            "The output has the same distribution as plain decoding; slipstream audit shows that.",
            f"Run: slipstream generate -m {model} -d {best} 'your prompt'",
        ],
    }  # fmt: skip
