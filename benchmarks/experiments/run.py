"""Runs the experiments on small language models that are trained from scratch.

    python benchmarks/experiments/run.py --device cuda --data FILE --out DIR [--minutes M] [--experiment N …]
                                         [--seeds 4] [--processes 4] [--size small|tiny] [--no-speed]

FILE: JSONL, plain or gzipped, with `prompt` and perhaps `response` in each line. Experiments: 1 prophet against early
exit, 2 the prophet objective, 3 recycling, 4 shapes of draft models. Every run, named by (experiment, variant, seed),
writes `DIR/runs/EXPERIMENT-VARIANT-SEED.json`. A second call with the same DIR does the missing runs. Speeds and the
time of a training step are measured at the end, one after the other. After `--minutes` no further run begins.
`DIR/summary.json` has effect, interval and cost. `tables.py DIR` and `charts.py DIR` make tables and pictures of it.

It needs torch, transformers, tokenizers, safetensors and numpy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import draft_shapes
import exit_and_prophet
import objective
import recycling
import text_data
import torch
from settings import SIZES, Sizes
from summary import write_summary

EXPERIMENTS = {1: exit_and_prophet, 2: objective, 3: recycling, 4: draft_shapes}


@dataclass(frozen=True)
class Job:
    """One training."""

    experiment: int
    variant: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.variant}-{self.seed}"

    @property
    def needs(self) -> tuple[Job, ...]:
        """The runs whose models this one uses."""
        return (Job(2, "none", self.seed),) if self.experiment == 1 else ()


def main() -> None:
    args = parse()
    sizes = SIZES[args.size]
    until = time.monotonic() + 60 * args.minutes
    (args.out / "runs").mkdir(parents=True, exist_ok=True)
    check_settings(args, sizes)
    text_data.prepare(args.data, args.out / "data", sizes)
    jobs = [
        Job(experiment, variant, seed)
        for seed in range(args.seeds)  # by seed, so that a run that is cut short has every variant of some seeds
        for experiment in sorted(args.experiment, key=(2, 1, 3, 4).index)  # 2 trains the targets of 1
        for variant in variants(experiment, sizes)
    ]
    jobs = [*dict.fromkeys(needed for job in jobs for needed in (*job.needs, job))]
    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        train_all([job for job in jobs if not result(args.out, job).exists()], pool, until, args)
    if not args.no_speed:
        measure_steps([job for job in jobs if job.seed == 0 and job.experiment in (2, 3)], until, args)
        measure_speeds([job for job in jobs if job.experiment in (1, 4)], until, args)
    write_summary(args.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--experiment", type=int, nargs="+", choices=sorted(EXPERIMENTS), default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--no-speed", action="store_true")
    return parser.parse_args()


def variants(experiment: int, sizes: Sizes) -> tuple[str, ...]:
    return draft_shapes.variants(sizes) if experiment == 4 else EXPERIMENTS[experiment].VARIANTS


def result(out: Path, job: Job) -> Path:
    return out / "runs" / f"{job.name}.json"


def check_settings(args: argparse.Namespace, sizes: Sizes) -> None:
    """All runs of a folder have the same sizes and data."""
    settings = json.loads(json.dumps({"sizes": asdict(sizes), "data": args.data.name, "device": args.device}))
    path = args.out / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        raise SystemExit(f"{args.out} holds runs with other settings; name another folder")
    path.write_text(json.dumps(settings, indent=1) + "\n")


def train_all(jobs: list[Job], pool: ProcessPoolExecutor, until: float, args: argparse.Namespace) -> None:
    """Train side by side. A job waits for those that it needs, and nothing begins after `until`."""
    waiting, running, total = list(jobs), dict[Future[float], Job](), len(jobs)
    while waiting or running:
        busy = set(running.values())
        ready = [j for j in waiting if all(n not in busy and result(args.out, n).exists() for n in j.needs)]
        if time.monotonic() > until:
            waiting = ready = []
        for job in ready[: max(0, args.processes - len(running))]:
            waiting.remove(job)
            running[pool.submit(train_one, job, args.size, args.out, args.device)] = job
        if not running:
            break
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            print(f"{job.name}: {future.result():.1f} s, {len(waiting) + len(running)} of {total} left", flush=True)
    if waiting:
        print(f"{len(waiting)} runs are left for another call")


def train_one(job: Job, size: str, out: Path, device: str) -> float:
    """Train one job and write its file. Returns the seconds."""
    began, sizes = time.monotonic(), SIZES[size]
    if device == "cpu":
        torch.set_num_threads(1)
    data = text_data.load(out / "data", sizes)
    figures = EXPERIMENTS[job.experiment].run(job.variant, job.seed, data, sizes, out, device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    write_json(result(out, job), asdict(job) | {"device": name, "torch": torch.__version__} | figures)
    return time.monotonic() - began


def measure_steps(jobs: list[Job], until: float, args: argparse.Namespace) -> None:
    """Add the seconds of a training step, from a short training without others beside it."""
    sizes = SIZES[args.size]
    short = replace(sizes, steps=40, evaluations=2, held_prompts=2)
    data = text_data.load(args.out / "data", sizes)
    for job in jobs:
        path = result(args.out, job)
        if not path.exists() or "step_seconds" in (figures := json.loads(path.read_text())) or time.monotonic() > until:
            continue
        curve = EXPERIMENTS[job.experiment].run(job.variant, 0, data, short, args.out / "cost", args.device)["curve"]
        seconds = (curve[1]["seconds"] - curve[0]["seconds"]) / (curve[1]["step"] - curve[0]["step"])
        write_json(path, figures | {"step_seconds": seconds})
        print(f"{job.name}: {seconds * 1000:.1f} ms a step", flush=True)


def measure_speeds(jobs: list[Job], until: float, args: argparse.Namespace) -> None:
    """Add the speed to every run of a drafter. One at a time, because runs side by side slow each other down."""
    from speed import measure_speed

    sizes = SIZES[args.size]
    data = text_data.load(args.out / "data", sizes)
    for job in jobs:
        path = result(args.out, job)
        folders = speed_folders(job, args.out)
        if not path.exists() or folders is None or time.monotonic() > until:
            continue
        figures = json.loads(path.read_text())
        if "speed" not in figures:
            try:
                speed: Any = measure_speed(*folders, data, sizes, args.device)
            except Exception as error:  # a shape that the engine refuses is a result, and must not end the others
                speed = {"error": f"{type(error).__name__}: {error}"}
            write_json(path, figures | {"speed": speed})
            print(f"{job.name}: {speed}", flush=True)


def speed_folders(job: Job, out: Path) -> tuple[Path, Path] | None:
    """Target and drafter of a run whose speed is measured."""
    if job.experiment == 1:
        return objective.base_folder(out, job.seed), exit_and_prophet.head_folder(out, job.variant, job.seed)
    target = draft_shapes.model_folder(out, draft_shapes.TARGET, job.seed)
    if job.variant == draft_shapes.TARGET or not target.exists():
        return None
    return target, draft_shapes.model_folder(out, job.variant, job.seed)


def write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    main()
