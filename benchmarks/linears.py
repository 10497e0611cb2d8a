"""All linear layers of the default model: the kernel for few rows against torch, and both against the machine.

    python benchmarks/linears.py [--rows 1 2 4 8 16 512] [--model FOLDER] [--repeats 7]
    python benchmarks/linears.py --integers [--threads 1]

Contenders take turns within one run and the fastest turn of each counts: other programs only ever add time. Limits are
measured too: bytes read per second by a sum over memory, multiply-adds by the kernel on weights that stay in the cache.
With --model, whole forward passes of that model are timed as well, as it is and with its linear layers packed. With
--integers, one row by quantised weights is timed instead, with activations of 16 and of 8 bits, by processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.few_bits import QuantizedGrid

LAYER = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
SHAPES = LAYER * 30 + [(49152, 576)]
WEIGHTS = sum(outputs * inputs for outputs, inputs in SHAPES)


def fastest(
    contenders: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of the fastest turn of each."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, contender in contenders.items():
            start = clock()
            contender()
            best[name] = min(best[name], clock() - start)
    return best


def limits(repeats: int) -> tuple[float, float]:
    """Bytes read and operations done per second, at best."""
    memory = torch.ones(1 << 27)
    x, weight = torch.ones(64, 512), cpu_linear.pack(torch.full((512, 512), 1 / 3))

    def work() -> None:
        for _ in range(16):
            cpu_linear.linear(x, weight)

    best = fastest({"read": memory.sum, "work": work}, repeats)
    return memory.nbytes / best["read"], 16 * 2 * 64 * 512 * 512 / best["work"]


def on_torch(x: Mapping[int, Tensor], weights: list[Tensor]) -> None:
    for weight in weights:
        functional.linear(x[weight.shape[1]], weight)


def on_kernel(x: Mapping[int, Tensor], weights: list[cpu_linear.PackedWeight]) -> None:
    for weight in weights:
        cpu_linear.linear(x[weight.inputs], weight)


def linears(row_counts: list[int], repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(shape, generator=generator).bfloat16().float() for shape in SHAPES]
    halved = [cpu_linear.pack(weight) for weight in plain]
    single = [cpu_linear.pack(weight + 2.0**-20) for weight in plain]
    print("rows   torch ms   2 bytes ms  ratio   GB/s  GFLOP/s   4 bytes ms  ratio   GB/s  GFLOP/s")
    for rows in row_counts:
        x = {inputs: torch.randn(rows, inputs, generator=generator) for inputs in (576, 1536)}
        best = fastest(
            {
                "torch": lambda x=x: on_torch(x, plain),
                "halved": lambda x=x: on_kernel(x, halved),
                "single": lambda x=x: on_kernel(x, single),
            },
            max(2, repeats * 8 // max(8, rows)),
        )
        line = f"{rows:4}  {best['torch'] * 1e3:9.1f}"
        for name, size in (("halved", 2), ("single", 4)):
            took = best[name]
            rate, work = WEIGHTS * size / took / 1e9, 2 * rows * WEIGHTS / took / 1e9
            line += f"   {took * 1e3:10.1f}  {took / best['torch']:5.2f}  {rate:5.1f}  {work:7.1f}"
        print(line, flush=True)


def integers(repeats: int) -> None:
    """One row by weights that are read from memory (96 MB), and by weights that stay in the cache (0.5 or 0.9 MB)."""
    generator, memory = torch.Generator().manual_seed(0), torch.ones(1 << 25)
    read = memory.nbytes / fastest({"read": memory.sum}, repeats, time.process_time)["read"] / 1e9
    print(f"a sum over memory reads {read:.1f} GB/s of processor time\nbits  weights  16-bit GB/s  8-bit GB/s")
    x = {576: torch.randn(1, 576, generator=generator)}
    for bits in (4, 8):
        number = torch.randint(0, 1 << (bits - 1), (1536, 18, 32), generator=generator, dtype=torch.uint8)
        scale = torch.rand(1536, 18, 1, generator=generator).half()
        own = QuantizedGrid(
            number if bits == 4 else number.view(torch.int8), scale, scale[..., 0] if bits == 4 else None
        )
        size = cpu_linear.pack_grid(own).data.nbytes
        for place, count, turns in (("memory", 96_000_000 // size, 1), ("cache", 1, 100)):
            kinds = {
                row_bits: [cpu_linear.pack_grid(own, None, row_bits) for _ in range(count)] for row_bits in (16, 8)
            }
            work = {str(row_bits): partial(on_kernel, x, packed * turns) for row_bits, packed in kinds.items()}
            best = fastest(work, repeats, time.process_time)
            rates = "  ".join(f"{size * count * turns / seconds / 1e9:11.1f}" for seconds in best.values())
            print(f"{bits:4}  {place:7}  {rates}", flush=True)


def passes(folder: str, row_counts: list[int], repeats: int) -> None:
    from transformers import AutoModelForCausalLM

    from slipstream.models.weights.linears import pack_linears

    plain, packed = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in range(2))
    print(f"whole passes, {pack_linears(packed)} linear layers packed\ntokens   torch ms  packed ms  ratio")
    for rows in row_counts:
        tokens = torch.arange(rows)[None] % 1000 + 100
        best = fastest(
            {
                "torch": lambda tokens=tokens: plain(tokens, use_cache=False),
                "packed": lambda tokens=tokens: packed(tokens, use_cache=False),
            },
            max(2, repeats * 8 // max(8, rows)),
        )
        times = f"{best['torch'] * 1e3:9.1f}  {best['packed'] * 1e3:9.1f}  {best['packed'] / best['torch']:5.2f}"
        print(f"{rows:6}  {times}", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16, 24, 512])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--integers", action="store_true")
    parser.add_argument("--model", help="a folder to load a causal language model from")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"torch {torch.__version__}, {chosen.threads} threads; {cpu_linear.status()}")
    if chosen.integers:
        integers(chosen.repeats)
        return
    read, work = limits(chosen.repeats)
    print(f"this machine reads {read / 1e9:.1f} GB/s and does {work / 1e9:.1f} GFLOP/s; weights: {WEIGHTS / 1e6:.1f}M")
    linears(chosen.rows, chosen.repeats)
    if chosen.model:
        passes(chosen.model, chosen.rows, chosen.repeats)


if __name__ == "__main__":
    main()
