"""Acceptance of the EAGLE head in vLLM and here, on the same prompts, greedy, one request at a time.

    python benchmarks/vllm_head.py --out OUT
    python benchmarks/vllm_head.py --out OUT --vllm-path FOLDER       # vLLM lies in a folder for PYTHONPATH
    python benchmarks/vllm_head.py --out OUT --vllm-python PYTHON     # or in an environment of its own

The head is written in vLLM's layout to OUT/head (`slipstream models convert`). Each engine runs in a process of its
own, and a part that is finished is not run again. vLLM runs in eager mode with few rows. OUT/result.json holds tau of
every prompt, and the ratio of the two with a 95 % interval over prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKER = HERE / "vllm_head_worker.py"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--head", default="smollm2-135m-eagle")
    parser.add_argument("--workload", default="code:4,chat:4,maths:4,summary:4")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--dtype", default="auto", help="of both engines; auto: the native engine's choice, bfloat16 in vLLM"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vllm-path", help="a folder with vLLM, for PYTHONPATH")
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--limit", type=float, default=400, help="seconds that vLLM may take")
    parser.add_argument("--part", choices=["native"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        native(args)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "native.json").exists():
        subprocess.run([sys.executable, __file__, "--part", "native", *sys.argv[1:]], check=True)
    if not (args.out / "vllm.json").exists():
        run_vllm(args)
    compare(args)


def native(args: argparse.Namespace) -> None:
    """Write the head for vLLM, the prompts and our own results."""
    import torch

    from slipstream.bench.workloads import load_workloads
    from slipstream.core.sampling import Sampling
    from slipstream.drafters.files.checkpoints import convert_head
    from slipstream.engines.native.build import build_target
    from slipstream.engines.native.engine import NativeEngine
    from slipstream.engines.native.scheduler import Limits
    from slipstream.models.sources.catalog import full_folder

    if not (args.out / "head" / "config.json").exists():
        convert_head(args.head, args.out / "head")
    items = [item for workload in load_workloads(args.workload) for item in workload.items]
    target = build_target(args.model, dtype=args.dtype, device=args.device)
    prompts = [target.text.encode(item.turns[0], raw=item.raw) for item in items]
    rows = []
    with NativeEngine(target, args.head, depth=args.depth, limits=Limits(retained=0)) as engine:
        for prompt in prompts:
            (sample,) = engine.generate(prompt, Sampling(temperature=0), max_tokens=args.max_tokens)
            drafted, accepted = sample.stats.drafted, sample.stats.accepted
            rows.append({"tokens": sample.token_ids, "cycles": sum(drafted[:1]), "accepted": sum(accepted)})
        about = {"model": engine.label, "torch": torch.__version__}
    job = {
        "model": str(full_folder(target.files.path)), "head": str(args.out / "head"),
        "depth": args.depth, "prompts": prompts,
        "max_tokens": args.max_tokens, "ends": sorted(target.text.ends), "dtype": args.dtype,
    }  # fmt: skip
    write(args.out / "job.json", job)
    write(args.out / "native.json", {**about, "rows": rows})


def run_vllm(args: argparse.Namespace) -> None:
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("PYTHONPATH", None)
    if args.vllm_path:
        environment["PYTHONPATH"] = args.vllm_path
    command = [args.vllm_python, str(WORKER), str(args.out / "job.json"), str(args.out / "vllm.json")]
    with (args.out / "vllm.log").open("w") as log:
        try:
            done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=args.limit)
            reason = "" if done.returncode == 0 else f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"not finished after {args.limit:g} s"
    if reason:
        tail = (args.out / "vllm.log").read_text()[-2500:]
        raise SystemExit(f"{tail}\nvLLM: {reason}; the whole log is {args.out / 'vllm.log'}")


def compare(args: argparse.Namespace) -> None:
    from slipstream.bench.statistics import ratio

    ours, theirs = (json.loads((args.out / f"{name}.json").read_text()) for name in ("native", "vllm"))
    prompts = [
        {"native": tau(own), "vllm": tau(other), "same_tokens": own["tokens"] == other["tokens"]}
        for own, other in zip(ours["rows"], theirs["rows"], strict=True)
    ]
    against = ratio([prompt["vllm"] for prompt in prompts], [prompt["native"] for prompt in prompts])
    result = {
        "depth": args.depth, "max_tokens": args.max_tokens, "workload": args.workload, "temperature": 0,
        "native": about(ours), "vllm": about(theirs), "prompts": prompts,
        "vllm_against_native": against.data(),
    }  # fmt: skip
    write(args.out / "result.json", result)
    print(f"tau, depth {args.depth}, {len(prompts)} prompts: native {result['native']['tau']:.3f}, "
          f"vLLM {result['vllm']['tau']:.3f}")  # fmt: skip
    print(f"vLLM / native by prompt, with 95 % interval: {against.data()}")
    print(f"same tokens: {sum(prompt['same_tokens'] for prompt in prompts)} of {len(prompts)}")


def tau(row: dict[str, Any]) -> float:
    """Tokens per pass of the target that verified a draft."""
    return 1 + row["accepted"] / max(1, row["cycles"])


def about(engine: dict[str, Any]) -> dict[str, Any]:
    cycles, accepted = (sum(row[name] for row in engine["rows"]) for name in ("cycles", "accepted"))
    return {
        **{key: value for key, value in engine.items() if key != "rows"},
        "cycles": cycles,
        "tau": 1 + accepted / cycles,
    }


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
