"""A forecast for hardware that is not here, from its data sheet: a pass takes as long as reading its weights or as its
arithmetic, whichever is longer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.plan.forecast.formulas import tokens_per_cycle, variance_per_cycle

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
OPERATIONS = 2.0  # per weight and token of a dense model: a product and a sum


@dataclass(frozen=True)
class Hardware:
    """A machine and a model on it. `weight_bytes`: of the target, in the form that is read."""

    bandwidth: float  # bytes per second
    flops: float  # operations per second
    weight_bytes: float
    bytes_per_weight: float = 2.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be more than 0")

    def seconds(self, tokens: int) -> float:
        """Seconds of one pass of the target over so many tokens. Keys and values are not counted."""
        operations = OPERATIONS * self.weight_bytes / self.bytes_per_weight * tokens
        return max(self.weight_bytes / self.bandwidth, operations / self.flops)

    @property
    def assumptions(self) -> list[str]:
        return [
            f"weights of {self.weight_bytes:.3g} bytes are read once per pass at {self.bandwidth:.3g} bytes/s",
            f"{self.bytes_per_weight:g} bytes per weight, 2 operations per weight and token at {self.flops:.3g}/s",
            "no time for keys and values, for the host, or for launching kernels",
        ]


@dataclass(frozen=True)
class HardwarePoint:
    """The forecast of one depth and batch. `deviation`: of the tokens of one cycle."""

    batch: int
    depth: int
    tau: float
    deviation: float
    tokens_per_second: float
    speedup: float


def forecast_hardware(
    hardware: Hardware, acceptance: float, depth: int, batch: int = 1, draft_cost: float = 0.05
) -> HardwarePoint:
    """`acceptance`: of every drafted token. `draft_cost`: of a drafted token, as a share of a plain pass."""
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance is {acceptance}; it must be between 0 and 1")
    if draft_cost < 0:
        raise ValueError(f"draft_cost is {draft_cost}; it must be 0 or more")
    if depth < 1 or batch < 1:
        raise ValueError(f"depth is {depth} and batch {batch}; both must be 1 or more")
    chances = [acceptance] * depth
    tau = tokens_per_cycle(chances)
    plain = hardware.seconds(batch)
    seconds = hardware.seconds(batch * (depth + 1)) + draft_cost * plain * depth
    speed = batch * tau / seconds
    return HardwarePoint(batch, depth, tau, variance_per_cycle(chances) ** 0.5, speed, speed * plain / batch)


def quantity(name: str, text: str) -> float:
    """A number with a unit as people write it: 3.35TB/s, 990T, 16GB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMGTP]?)(?:i?B|FLOPS|flops)?(?:/s)?\s*", text)
    if match is None or not float(match[1]):
        raise ValueError(f"{name} is {text!r}; write a number with a unit, such as 3.35TB/s, 990T or 16GB")
    return float(match[1]) * UNITS[match[2]]
