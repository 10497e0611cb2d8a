"""Compile kernels for a GPU, which takes none: what the interpreter lets through, a compiler may not.

Run by `tests/kernels/gpu/test_tree.py` in a process of its own, since kernels are interpreted in the others. Without
`--whole` it ends with the representation for GPUs, which is a quarter of the work: LLVM and ptxas come after it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

from slipstream.kernels.gpu import cycle, entries, logprobs, path, residual, tree
from slipstream.kernels.gpu import matmul as products
from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu import verify as judge
from slipstream.kernels.gpu.attention import parts as attention
from slipstream.kernels.gpu.attention import rotary, splits
from slipstream.kernels.gpu.blocks import markov
from slipstream.kernels.gpu.lossy import kernels as lossy

F, L, I = "*fp32", "*i64", "*i32"  # noqa: E741
SLOTS, PADDED, LEVELS, WIDTH = 25, 32, 2, 6
CHUNKED = {"CHUNK": 5, "CHUNKS": 5, "WORDS": 4, "USED": 2}
Kernel = tuple[Any, list[str], dict[str, Any]]

B, D, SOME = "*bf16", "*fp64", "i32"
HEADS, WIDE = {"HEADS": 9, "KV": 3, "DIM": 64}, {"HEADS": 9, "DIM": 64, "WIDE": 64}

LAWS = [F, SOME, L, F, F, F, SOME, F, F, L, F]  # logits to temperature, as the lossy rules take them

LOSSY: list[Kernel] = [
    *(
        (
            lossy.sum_laws,
            [*LAWS, D, SOME, "fp32"],
            {"KIND": kind, "WIDTH": 3, "NAMED": True, "SURE": False, "BLOCK": 512, "EARLY": True},
        )
        for kind in (2, 3, 4)
    ),
    (
        lossy.find_peaks,
        [*LAWS, D, D, I, SOME, "fp32"],
        {"WIDTH": 3, "NAMED": True, "SURE": False, "BLOCK": 512, "BLOCKS": 32, "EARLY": True},
    ),
    *(
        (
            lossy.decide,
            [F, SOME, L, L, L, F, F, F, F, F, L, L, D, D, I, SOME, D, L, L, L, L, SOME, "fp32", "fp32"],
            {"KIND": kind, "SUMS": kind in (2, 3, 4), "ARGMAX": argmax, "SURE": False, "WIDTH": 3, "BLOCKS": 32,
             "EARLY": True},
        )
        for kind, argmax in ((0, False), (2, True), (3, True), (4, False), (5, False), (6, True))
    ),
    *(
        (
            lossy.race_rest,
            [F, SOME, L, L, F, F, F, SOME, F, F, L, F, L, L, L, D, L, D, I, SOME, SOME],
            {"KIND": kind, "NAMED": True, "SURE": False, "BLOCK": 512, "EARLY": True},
        )
        for kind in (3, 4)
    ),
    (logprobs._survey, [F, SOME, L, F, F, F, SOME], {"BLOCK": 512, "EARLY": True}),
    *(
        (
            logprobs._write,
            [F, SOME, L, L, L, F, F, F, F, L, D, *[SOME] * 4],
            {"SURVEYED": surveyed, "BLOCKS": 32 if surveyed else 1, "TOPS": 32 if surveyed else 0, "EARLY": True},
        )
        for surveyed in (True, False)
    ),
]  # fmt: skip

KERNELS: list[Kernel] = [
    *LOSSY,
    *(
        (
            rotary._turn,
            [B, SOME, F, F, L, L, L, B, B, B, SOME, SOME, B, B, "fp32"],
            {**HEADS, **heads, "HALF": 32, "NORMED": on, "TURNED": 8, "EARLY": on},
        )
        for on, heads in ((True, {}), (False, {}), (False, {"HEADS": 0}))
    ),
    (residual._sums_ready, [F, B, B, F, B, F, SOME, SOME], {"SIZE": 1024, "MOST": 512, "EARLY": True}),
    (rotary._put, [B, B, L, L, B, B, *[SOME] * 6], {"DIM": 64, "WIDE": 64, "EARLY": True}),
    *(
        (
            attention._attend,
            [B, B, B, *[L] * 10, F, F, F, SOME, SOME, SOME, "fp32", SOME, "fp32"],
            {
                "SURVEYED": on,
                "WINDOW": on,
                "CAP": on,
                **HEADS,
                "WIDE": 64,
                "TREE": True,
                "PATHS": not on,
                "EXACT": False,
                "QUERIES": 64 if on else 16,
                "PART": 128,
                "WORDS": 4,
                "EARLY": on,
            },
        )
        for on in (True, False)
    ),
    *(
        (
            splits._attend_share,
            [B, B, B, *[L] * 9, F, F, F, B, B, SOME, SOME, SOME, "fp32", SOME, "fp32"],
            {
                "SURVEYED": on,
                "WINDOW": on,
                "CAP": on,
                "SINK": on,
                **HEADS,
                "WIDE": 64,
                "TREE": on,
                "EXACT": False,
                "WHOLE": on,
                "QUERIES": 64 if on else 16,
                "TILE": 64,
                "STAGES": 3,
                "WORDS": 4,
                "EARLY": on,
            },
        )
        for on in (True, False)
    ),
    *(
        (splits._merge_shares, [F, F, F, L, B, B, SOME], {"SINK": on, **WIDE, "SPLITS": 16, "EARLY": on})
        for on in (True, False)
    ),
    (attention._paths, [L] * 5, {"WORDS": 4, "EARLY": True}),
    (attention._survey, [L] * 5, {"GROUP": 3, "QUERIES": 16, "EARLY": True}),
    *(
        (
            attention._together,
            [F, F, F, L, L, B, SOME, SOME, B],
            {
                "ONCE": once,
                "WINDOW": not once,
                "SINK": True,
                **WIDE,
                "PART": 128,
                "TOGETHER": 8,
                "ABREAST": 4,
                "EARLY": True,
            },
        )
        for once in (True, False)
    ),
    *(
        (
            products._product,
            [B, B, F, F, B, F, B, B, F, F, I, *[SOME] * 5, "fp32"],
            {
                "EIGHTH": False,
                "NORM": not adds,
                "BIAS": adds,
                "GATED": not adds,
                "ADD": adds,
                "AFTER": adds,
                "EXACT": False,
                "ROWS": rows,
                "COLUMNS": 32,
                "STEP": 128,
                "PARTS": 16,
                "MOST": products.MOST,
                "LINE": 64,
                "LINES": products.LINES,
                "SHARES": 4 if adds else 1,
                "SPREAD": adds,
                "EARLY": True,
            },
        )
        for adds, rows in ((True, 16), (False, 16), (True, 64), (False, 64))
    ),
    *(
        (
            draw._survey,
            [F, SOME, F, L, L, L, L, F, I, D, D, I, SOME, SOME],
            {"PURPOSE": 3, "RACE": on, "NAMED": on, "TREE": not on, "BLOCK": 512, "EARLY": on},
        )
        for on in (True, False)
    ),
    (
        draw._conclude,
        [F, SOME, F, L, L, SOME, F, I, D, D, I, F, F, F, F, L, SOME, SOME, SOME],
        {"RACE": True, "NAMED": True, "DRAFTING": True, "BLOCKS": 32, "EARLY": True},
    ),
    (judge._match, [L, L, L, F, L, L, L, SOME], {"LONG": 16, "EARLY": True}),
    (
        judge._rest,
        [F, SOME, L, L, F, F, F, SOME, F, F, L, F, L, L, L, D, D, I, SOME, SOME],
        {"NAMED": True, "SURE": False, "BLOCK": 512, "EARLY": True},
    ),
    *((cycle._lay, [*[L] * 11, *[SOME] * 4], {"FIRST": on, "LONG": 16, "EARLY": True}) for on in (True, False)),
    (
        markov._correct,
        [L, SOME, B, F, SOME, B, F, SOME, SOME, SOME],
        {"WIDTH": 64, "ROWS": markov.ROWS, "BLOCK": markov.BLOCK, "EARLY": True},
    ),
    (cycle._commit, [*[L] * 8, F, *[L] * 7, D, *[L] * 4, *[SOME] * 5], {"LONG": 16, "EARLY": True}),
    (
        cycle._hand_over,
        [L, F, L, L, F, *[SOME] * 4],
        {"START": 1, "DEPTH": 2, "LEFT": 9, "GOAL": 10, "COUNT": 11, "LONG": 16, "LIMITS": 5},
    ),
    (
        tree._rank,
        [F, "i32", F, L, L, L, "i32", F, F, F, I],
        {"WIDTH": WIDTH, "OPEN": 6, "RACE": True, "BLOCK": 512, "EARLY": True},
    ),
    (
        tree._merge,
        [F, F, F, I, L, *["i32"] * 4, L, L, F, F, L, L, L, F],
        {"WIDTH": WIDTH, "OPEN": 6, "FIRST": False, "BLOCKS": 4, "CANDIDATES": 32, "EARLY": True},
    ),
    *(
        (
            tree._open,
            [L, F, *["i32"] * 4, *[L] * 5, L, F, *[L] * 9],
            {"WIDTH": WIDTH, "FIRST": first, "SIZE": 64, "WIDE": 8, **CHUNKED, "EARLY": first},
        )
        for first in (True, False)
    ),
    (tree._sift, [F, L, "i32", I], {"SOME": 64, "EARLY": True}),
    (tree._number, [I, "i32", L], {"POOL": 512, "EARLY": True}),
    (
        tree._plant,
        [I, L, L, L, "i32", "i32", *[L] * 14],
        {"WIDTH": SLOTS, "WIDE": PADDED, "SOME": 64, **CHUNKED, "EARLY": True},
    ),
    (path._follow, [L, L, L, L, F, L, L, L, L], {"WIDTH": SLOTS, "WIDE": PADDED, "LEVELS": LEVELS, "EARLY": True}),
    (
        path._offer,
        [F, "i32", L, L, L, F, F, F, L, L, L, L, L, L, L],
        {"WIDTH": SLOTS, "WIDE": PADDED, "LEVELS": LEVELS, "EARLY": True},
    ),
    (path._remain, [F, "i32", F, F, F, L, L, L, L, L, "*fp64", I], {"WIDTH": SLOTS, "BLOCK": 512, "EARLY": True}),
    *(
        (path._carry, [L, kind, L, L, L, L, *["i32"] * 3], {"LEVELS": LEVELS, "SIZE": 64, "EARLY": True})
        for kind in (F, "*bf16")
    ),
    *((entries._copy, [L, kind, L, "i32", "i32"], {"HEADS": 3, "BLOCK": entries.BLOCK}) for kind in (L, "*bf16")),
    (
        path._report,
        [L] * 23,
        {"WIDTH": SLOTS, "WIDE": PADDED, "LEVELS": LEVELS, "LONG": 4, "CHUNK": 5, "CHUNKS": 1, "EARLY": True},
    ),
]


class Lowered(Exception):
    """A kernel has its representation for GPUs."""


def stop(*_: Any) -> None:
    raise Lowered


def main(whole: bool) -> None:
    if not whole:
        CUDABackend.make_llir = stop
    for kernel, types, sizes in KERNELS:
        names = kernel.arg_names
        assert names[len(types) :] == list(sizes), f"{kernel.__name__} takes {names}"
        signature = dict(zip(names, [*types, *["constexpr"] * len(sizes)], strict=True))
        fixed = {(names.index(name),): value for name, value in sizes.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        with suppress(Lowered):
            binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
            assert whole
            assert binary.asm["cubin"]


if __name__ == "__main__":
    main("--whole" in sys.argv)
    print(f"{len(KERNELS)} kernels")
