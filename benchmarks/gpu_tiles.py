"""Which tiles a product of few tokens is fastest with: what `kernels.gpu.tiles` is made from.

Every weight lies in memory many times over, so that none is read from a cache; all products of a candidate are one
graph. What is told is the time of one product and how far that is from reading its weight once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product as all_of
from typing import Any

import torch
from gpu_common import timed

from slipstream.kernels.gpu import matmul as products
from slipstream.kernels.gpu.residual import Norm, ResidualStream
from slipstream.models.run.gpu.graphs import capture

SIZES = {  # hidden, inner, qkv
    "135M": (576, 1536, 960),
    "0.5B": (896, 4864, 1152),
    "1.5B": (1536, 8960, 2048),
    "3B": (2048, 11008, 2560),
    "8B": (4096, 14336, 6144),
}
COLUMNS, STEPS, WARPS, SHARES = (16, 32, 64), ((64, 6), (128, 4), (128, 6), (256, 4)), 4, (1, 2, 4, 8)
SPREAD = 1 << 28  # bytes that one candidate reads: five times what the largest cache holds
ROOM = 200 << 10  # bytes of a processor's own memory
MOST = 1200  # programs beyond which more shares are no use
TOLD = 4
Tile = tuple[int, int, int, int, int]


def tiles(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """The best tile of each product of models of these sizes, beside the one that is taken."""
    told: dict[str, Any] = {}
    for name, (size, inner, wide) in SIZES.items():
        shapes = {"qkv": (wide, size), "output": (size, size), "gate_up": (2 * inner, size), "down": (size, inner)}
        for part, (outputs, inputs) in shapes.items():
            gated = part == "gate_up"
            usual = products.tile(outputs // (2 if gated else 1), inputs, gated)
            weights = [
                torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
                for _ in range(max(1, SPREAD // (2 * outputs * inputs)))
            ]
            speeds = {tile: _time(weights, gated, tile) for tile in {usual, *candidates(outputs, inputs, gated)}}
            order = sorted(speeds, key=speeds.__getitem__)
            limit = 2 * outputs * inputs / results["bandwidth"] * 1e6
            told[f"{name} {part}"] = {
                "limit_us": round(limit, 2),
                "usual": {"tile": usual, "us": round(speeds[usual], 2)},
                "best": [{"tile": tile, "us": round(speeds[tile], 2)} for tile in order[:TOLD]],
            }
            print(f"{name} {part}: {told[f'{name} {part}']}", flush=True)
    return told


def candidates(outputs: int, inputs: int, gated: bool) -> Iterator[Tile]:
    for columns, (step, stages), shares in all_of(COLUMNS, STEPS, (1,) if gated else SHARES):
        fits = 2 * step * stages * (columns * (2 if gated else 1) + products.ROWS) <= ROOM
        programs = -(-outputs // columns) * shares
        shared = shares == 1 or (programs <= MOST and columns * programs <= products.SHARED and step * shares < inputs)
        if fits and shared:
            yield columns, step, WARPS, stages, shares


def _time(weights: list[torch.Tensor], gated: bool, tile: Tile) -> float:
    """Microseconds of one product of one token."""
    outputs, inputs = weights[0].shape
    stream = ResidualStream(1, inputs, weights[0])
    stream.hidden.normal_()
    stream.begin(Norm(torch.ones(inputs, device="cuda", dtype=torch.bfloat16), 1e-5))
    out = torch.empty(1, outputs // (2 if gated else 1), device="cuda", dtype=torch.bfloat16)
    usual = products.tile
    products.tile = lambda *_: tile
    try:
        replay = capture(lambda: [products.product(stream, weight, out, gated=gated) for weight in weights] and None)
    finally:
        products.tile = usual
    return timed(replay, 10) / len(weights) * 1000
