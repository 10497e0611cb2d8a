"""Start and memory of `slipstream generate` on a CPU: seconds to the first answer, resident memory, cache on disk.

    python benchmarks/cpu_start.py [--model smollm2-135m] [--repeats 5]

Each repeat is a process of its own with a compiled package and, as after an installation, with Python's bytecode. The
cache on disk is the model's folder and its package, over the size of the GGUF file. Exits with 1 where a bar is missed.
`cpu_peers.py` runs this, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from slipstream.bench.statistics import Estimate, estimate
from slipstream.models.compiled import package
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.gguf.files import gguf_file

FIRST, MEMORY, DISK = "seconds to the first answer", "resident memory, MB", "cache on disk / GGUF file"
START_BARS = {FIRST: 2.0, MEMORY: 400.0, DISK: 2.0}
SLIPSTREAM = [sys.executable, "-m", "slipstream"]
# A process begins with the peak of the one that it was forked from. So a small one in between starts the command.
PEAK = (
    "import os, sys; pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); _, status, usage = os.wait4(pid, 0)"
)
PEAK += "; print(usage.ru_maxrss, file=sys.stderr); sys.exit(os.waitstatus_to_exitcode(status))"


def start(model: str, repeats: int) -> dict[str, Estimate]:
    if not package.place(resolve(model)).exists():
        subprocess.run([*SLIPSTREAM, "models", "compile", model], check=True)
    runs = [_run(model) for _ in range(repeats + 1)][1:]
    return {
        FIRST: estimate([seconds for seconds, _ in runs]),
        MEMORY: estimate([memory for _, memory in runs]),
        DISK: Estimate(_stored(model), None),
    }


def _run(model: str) -> tuple[float, float]:
    """Seconds until the first character of an answer, and the largest resident memory in MB."""
    command = [sys.executable, "-S", "-c", PEAK, *SLIPSTREAM, "generate", "Say hello", "-m", model, "--max-tokens", "8"]
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=compiled)
    assert process.stdout is not None
    process.stdout.read(1)
    seconds = time.perf_counter() - started
    _, said = process.communicate()
    assert process.returncode == 0, f"slipstream generate ended with status {process.returncode}: {said.decode()}"
    return seconds, int(said.split()[-1]) * 1024 / 1e6


def _stored(model: str) -> float:
    files = resolve(model)
    stored: list[Path] = [*files.path.iterdir(), package.place(files)]
    return sum(path.stat().st_size for path in stored) / gguf_file(model).stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    figures = start(args.model, args.repeats)
    for name, bound in START_BARS.items():
        span = figures[name].interval
        between = "" if span is None else f" ({span[0]:.2f} to {span[1]:.2f})"
        print(f"{name}: {figures[name].value:.2f}{between}, at most {bound:g}")
    sys.exit(any(figures[name].value > bound for name, bound in START_BARS.items()))


if __name__ == "__main__":
    main()
