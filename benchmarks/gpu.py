"""Everything about a GPU in one call: is it right, how far is it from the price of the bytes, what does a token cost.

    python benchmarks/gpu.py --model smollm2-135m --out results.json

Needs torch, triton and transformers alone. Parts: `same` compares captured cycles with the other path, and tokens
across batches; `steady` counts what a cycle allocates, compiles and waits for; `passes` times one pass of an 8B-shaped
model of random weights against bytes read / measured bandwidth, `cycle` a whole cycle of it against the sum of its
passes; `kinds` passes of other architectures, eager and captured; `engines` the engine beside transformers' `generate`,
interleaved; `trees` shapes by workload and temperature; `scaled` the same model at the cost of one of 7 billion
weights; `pair` a target and its draft model (`--pair TARGET DRAFT`); `energy` reads the driver's counter; `rounded`
what weights in eight bits do to laws; `tiles` looks for better tiles of products, `widths` compares them with the
library's for 16 to 64 tokens. The pair, the tiles and the widths are left out unless they are asked for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_checks import energy, same, steady
from gpu_common import bandwidth
from gpu_engines import engines, pair, scaled, trees
from gpu_passes import cycle, kinds, passes, rounded, widths
from gpu_tiles import tiles

from slipstream.bench.measure.provenance import commit

Part = Callable[[argparse.Namespace, dict[str, Any]], Any]
PARTS: dict[str, Part] = {
    "same": same,
    "steady": steady,
    "engines": engines,
    "trees": trees,
    "energy": energy,
    "passes": passes,
    "cycle": cycle,
    "kinds": kinds,
    "scaled": scaled,
    "rounded": rounded,
    "pair": pair,
    "tiles": tiles,
    "widths": widths,
}
ASKED = ("pair", "tiles", "widths")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--head", default="eagle")
    parser.add_argument("--pair", nargs=2, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--workload", default="code", help="of the pair: a name or a .jsonl file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[name for name in PARTS if name not in ASKED])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540, help="a part that has not begun by then is left out")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "model": asked.model}
    results |= {"commit": commit(), "bandwidth": bandwidth(), "seconds": {}}
    print(f"{results['device']}: {results['bandwidth'] / 1e12:.2f} TB/s", flush=True)
    start = time.perf_counter()
    for name in asked.parts:
        began = time.perf_counter()
        if began - start > asked.seconds:
            results[name] = {"left out": f"{asked.seconds:.0f} seconds were over"}
            print(f"{name}: {results[name]}", flush=True)
            continue
        try:
            results[name] = PARTS[name](asked, results)
        except Exception as error:  # the other parts are still worth having
            results[name] = {"failed": repr(error)}
        results["seconds"][name] = round(time.perf_counter() - began, 1)
        print(f"{name} ({results['seconds'][name]} s): {json.dumps(results[name])}", flush=True)
        torch.cuda.empty_cache()
        if asked.out:
            asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
