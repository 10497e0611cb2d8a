"""All measurements that need a GPU, one after the other, in the time there is. Resumable.

    python benchmarks/gpu_all.py --out FOLDER [--minutes 25] [--only NAME …] [--list]
        [--pair LARGE SMALL] [--whisper LARGE SMALL] [--clips FILE …] [--tasks FOLDER] [--xsum FILE] [--prompts FILE]
        [--rules NAME,NAME…]

Each measurement is a script of this folder or a command of slipstream, with the options of the docs. Its output goes to
FOLDER/NAME.txt and its results to FOLDER/NAME or FOLDER/NAME.json. A measurement that has ended is not run again: its
exit code and seconds are in FOLDER/done.json. Exit code 1 means that a bar is missed, which is a result. None begins
that would take longer than the time left, by the seconds noted for one H200, and none goes on for more than twice these
seconds. Those whose models or files are not given are left out. The folder of --tasks holds humaneval.jsonl and
mbpp.jsonl, with checkers (docs/cascades.md). --prompts is the file that gpu_load.py reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.drafters.files.folder import write_atomically

HERE = Path(__file__).parent
RULES = "lenient,cascade_token,cascade_difference,cascade_chow,cascade_tv,typical,bild"


class Task(NamedTuple):
    """A command. `{name}` in it is a field of `values`; a task without all of its fields is left out."""

    name: str
    seconds: int  # on one H200
    command: str


TASKS = (
    Task("tests", 240, "-m pytest {here}/../tests/engines/native/captured {here}/../tests/kernels -q"),
    Task("hopeless", 80, "{here}/never_slower.py hopeless --device cuda --out {out}/hopeless.json"),
    Task("mix", 110, "{here}/mixed_work.py --batches 1 8 --device cuda --out {out}/mix.json"),
    Task("speech", 130, "{here}/speech.py {clips} -m {whisper} -d {whisper_small} --device cuda --long 150 --batch "
                        "--repeats 5 --out {out}/speech.json"),
    Task("prediction", 111, "{here}/prediction.py --model {large} --device cuda --invariant "
                            "--out {out}/prediction.json"),
    Task("stages", 55, "{here}/stages.py --model {large} --draft {small} --device cuda --repeats 2 "
                       "--workload code:1,chat:1,rewriting:2 --out {out}/stages.json"),
    Task("curve", 420, "-m slipstream.bench --task {both} -m {large} --small {small} --curve --max-tokens 400 "
                       "--limit 24 --quality-batch 256 --verify {rules} --batch 1 --time-limit 400 --out {out}/curve"),
    Task("table1", 100, "{here}/table1.py run -m {large} -d {small} --xsum {xsum} --humaneval {humaneval} --batch 256 "
                        "--out {out}/table1"),
    Task("choose", 150, "-m slipstream plan choose -m {large} --small {small} --task {humaneval} --json"),
    Task("profile", 110, "-m slipstream profile --device cuda --batch 1,8,64 --out {out}/profile.json"),
    Task("start", 60, "{here}/never_slower.py start --device cuda --profile {out}/profile.json --out {out}/start.json"),
    Task("forecast", 300, "-m slipstream.bench --forecast --workload code:4,chat:4,maths:4,summary:4 --repeats 2 "
                         "--device cuda --out {out}/forecast --json"),
    Task("energy", 160, "{here}/energy.py --device cuda --out {out}/energy"),
    Task("cells", 600, "{here}/gpu_cells.py --out {out}/cells.json --seconds 560"),
    Task("load", 300, "{here}/gpu_load.py --prompts {prompts} --out {out}/load.json"),
    Task("drafters", 600, "{here}/drafters.py --device cuda --out {out}/drafters"),
)  # fmt: skip


def values(args: argparse.Namespace) -> dict[str, str]:
    """What commands may name, as far as it is given."""
    found = {"here": str(HERE), "out": str(args.out), "rules": args.rules, "clips": " ".join(args.clips)}
    found |= dict(zip(("large", "small"), args.pair, strict=False))
    found |= dict(zip(("whisper", "whisper_small"), args.whisper, strict=False))
    found |= {name: str(getattr(args, name)) for name in ("xsum", "prompts") if getattr(args, name)}
    if args.tasks:
        both = args.out / "both.jsonl"
        both.write_text("".join((args.tasks / f"{name}.jsonl").read_text() for name in ("humaneval", "mbpp")))
        found |= {"humaneval": str(args.tasks / "humaneval.jsonl"), "both": str(both)}
    return {name: value for name, value in found.items() if value}


def ready(tasks: tuple[Task, ...], known: dict[str, str], only: list[str]) -> dict[str, list[str]]:
    """The commands of tasks that are asked for and can run."""
    commands = {}
    for task in tasks:
        if only and task.name not in only:
            continue
        try:
            commands[task.name] = task.command.format_map(known).split()
        except KeyError as missing:
            print(f"{task.name}: left out, {missing.args[0]} is not given")
    return commands


def run(name: str, command: list[str], out: Path, limit: float) -> dict[str, Any]:
    """Run a command for at most `limit` seconds, and note how it ended."""
    start = time.time()
    with open(out / f"{name}.txt", "a") as log:
        try:
            code = subprocess.run(
                [sys.executable, *command], stdout=log, stderr=log, timeout=limit, env=os.environ | {"TERM": "dumb"}
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    took = time.time() - start
    print(f"{name}: {'out of time' if code is None else f'exit code {code}'} after {took:.0f} s", flush=True)
    return {"code": code, "seconds": round(took, 1), "command": " ".join(["python", *command])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--only", nargs="+", default=[], choices=[task.name for task in TASKS])
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--pair", nargs=2, default=[], metavar=("LARGE", "SMALL"))
    parser.add_argument("--whisper", nargs=2, default=[], metavar=("LARGE", "SMALL"))
    parser.add_argument("--clips", nargs="+", default=[])
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--xsum", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--rules", default=RULES, help="of the curve")
    args = parser.parse_args()
    end = time.time() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    commands = ready(TASKS, values(args), args.only)
    note = args.out / "done.json"
    done: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {}
    for task in TASKS:
        if task.name not in commands or done.get(task.name, {}).get("code") in (0, 1):
            continue
        if args.list:
            print(f"{task.name} ({task.seconds} s): python {' '.join(commands[task.name])}")
        elif task.seconds > end - time.time():
            print(f"{task.name}: left out, it takes about {task.seconds} s", flush=True)
        else:
            done[task.name] = run(task.name, commands[task.name], args.out, min(end - time.time(), 2 * task.seconds))
            write_atomically(note, lambda path: path.write_text(json.dumps(done, indent=1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
