"""Audits of the peers from outside, one after the other, and what was found, as JSON.

    python benchmarks/audit_peers.py --engine llamacpp --engine transformers --samples 512
    python benchmarks/audit_peers.py --engine vllm --python ~/vllm/bin/python
    python benchmarks/audit_peers.py --letters --samples 8000

Each case is a run of `slipstream audit --engine …`, whose command is in the record. Drafting with the target itself
would accept everything and test nothing, so the draft model is the default model without two of its middle layers.

`--letters` audits the same samplers on the tests' model of sixteen letters, whose passes take a millisecond: thousands
of samples see a far smaller bias. Its draft model is the same with noise on its weights. vLLM cannot run it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

MODEL = "smollm2-135m"
LAYERS = [*range(13), *range(15, 30)]
RESULTS = Path(__file__).with_name("results")


def cases(engine: str, folder: str, gguf: str, python: str) -> list[list[str]]:
    """What is audited of each engine: the words after `slipstream audit --engine NAME`."""
    vllm = ["-o", f"python={python}"] if python else []
    return {
        "native": [["-d", "ngram"], ["-d", folder, "--verify", "token"], ["-d", folder, "--verify", "block"]],
        "transformers": [["-d", "ngram"], ["-d", folder], ["-d", "early_exit", "-o", "exit=28"]],
        "llamacpp": [  # prompts are kept: each is read once and continued many times
            ["-d", "ngram", "-o", "ngram=2", "-o", "cache=1"],
            ["-d", gguf, "-o", "cache=1"],
            ["-d", gguf, "-o", "probabilistic=1", "-o", "cache=1"],
        ],
        "vllm": [
            ["-d", "ngram", *vllm],
            ["-d", folder, *vllm],
            ["-d", folder, "-o", "sample=probabilistic", *vllm],
        ],
    }[engine]


def cut_folder(work: Path) -> Path:
    """The default model with some layers left out, as a folder."""
    from slipstream.models.run.layers import keep_layers
    from slipstream.models.sources.catalog import load_model, load_tokenizer, resolve

    folder = work / "smollm2-cut"
    if not (folder / "model.safetensors").exists():
        files = resolve(MODEL)
        model = load_model(files, "bfloat16")
        keep_layers(model, ",".join(map(str, LAYERS)))
        model.save_pretrained(folder)
        load_tokenizer(files).save_pretrained(folder)
    return folder


def cut_gguf(work: Path) -> Path:
    """The same as a GGUF file: blocks are renumbered, everything else is copied as it is."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    from slipstream.models.sources.gguf.files import gguf_file

    path = work / "smollm2-cut.gguf"
    if path.exists():
        return path
    reader = GGUFReader(gguf_file(MODEL))
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = len(LAYERS) if name.endswith(".block_count") else field.contents()
        kind, inner = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, inner)
    for tensor in reader.tensors:
        part = tensor.name.split(".")
        if part[0] == "blk":
            if int(part[1]) not in LAYERS:
                continue
            part[1] = str(LAYERS.index(int(part[1])))
        writer.add_tensor(".".join(part), tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def run(engine: str, words: list[str], samples: int, threads: int) -> dict[str, Any]:
    if engine == "llamacpp" and threads:
        words = [*words, "-o", f"threads={threads}"]
    command = ["audit", "--engine", engine, *words, "--samples", str(samples), "--json"]
    started = time.time()
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *command], capture_output=True, text=True, env=environment
    )
    lines = done.stdout.strip().splitlines()
    print(done.stdout[: done.stdout.rfind("\n{")], done.stderr[-500:], sep="\n", flush=True)
    report = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"error": done.stderr.strip()[-500:]}
    report.pop("layers", None)
    if "python" in report.get("options", {}):
        report["options"]["python"] = "PATH"
    shown = [Path(word).name if "/" in word and "=" not in word else word for word in command]
    shown = ["python=PATH" if word.startswith("python=") else word for word in shown]
    return {"command": "slipstream " + " ".join(shown), "seconds": round(time.time() - started), **report}


LETTERS = {
    "native": [("ngram", {}), ("noisy", {})],
    "transformers": [("ngram", {}), ("noisy", {}), ("early_exit", {"exit": "1"})],
    "llamacpp": [("ngram", {"ngram": "2"}), ("noisy", {}), ("noisy", {"probabilistic": "1"})],
}


def run_letters(engine: str, drafter: str, options: dict[str, str], work: Path, samples: int) -> dict[str, Any]:
    """As `slipstream audit --engine` does it, with prompts that this model has letters for."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import letters
    import letters_folder
    from slipstream.audit.engines.engine import EngineAudit
    from slipstream.audit.engines.engine_subject import EngineSubject
    from slipstream.engines import open_engine
    from slipstream.engines.native.build import build_target

    target, noisy = (str(letters_folder.write(work / name, noise)) for name, noise in (("letters", 0), ("noisy", 0.08)))
    engine_options = {"threads": "1"} if engine == "llamacpp" else {}
    started, plan = time.time(), (noisy if drafter == "noisy" else drafter)
    with (
        open_engine(engine, target, plan, None, 3, options | engine_options) as fast,
        open_engine(engine, target, "none", options=engine_options) as plain,
    ):
        prompts = [[letters.TOKENS.index(c) for c in text] for text in ("abcabcabcab", "ponmponm", "hhgghhg", "aceg")]
        subject = EngineSubject(fast, plain, build_target(target, "float32").model, frozenset({0}), prompts[0], prompts)
        checks = [vars(check.run()) for check in EngineAudit(subject, samples).plan()]
        about = {"engine": fast.version, "model": "letters", "drafter": drafter, "options": options, "depth": 3}
    for check in checks:
        print("ok" if check["passed"] else "FAILED", check["name"], check["detail"], flush=True)
    passed = all(check["passed"] for check in checks)
    command = f"python benchmarks/audit_peers.py --letters --engine {engine} --samples {samples}"
    seconds = round(time.time() - started)
    return {"command": command, "seconds": seconds, "passed": passed, **about, "samples": samples, "checks": checks} | {
        "figures": subject.figures
    }


def run_quick(engine: str, words: list[str]) -> dict[str, Any]:
    """Temperature 0, seeds, and tokens that the law excludes: a few texts, where sampling thousands takes too long."""
    from slipstream.audit.engines.engine_checks import greedy, seeds
    from slipstream.audit.engines.engine_subject import EngineSubject
    from slipstream.audit.prompts import PROMPTS
    from slipstream.cli.options import engine_options, settings
    from slipstream.engines import open_engine
    from slipstream.engines.native.build import build_target

    options = settings([word for flag, word in pairwise(words) if flag == "-o"])
    drafter, target = words[words.index("-d") + 1], build_target(MODEL, "float32")
    prompts = [target.text.encode(prompt) for prompt in PROMPTS]
    with (
        open_engine(engine, MODEL, drafter, None, 3, options) as fast,
        open_engine(engine, MODEL, "none", options=engine_options(options)) as plain,
    ):
        subject = EngineSubject(fast, plain, target.model, target.text.ends, prompts[0], prompts)
        checks = [vars(check) for check in (*seeds(subject), greedy(subject))]
        about = {"engine": fast.version, "model": fast.label, "drafter": Path(drafter).name, "depth": 3}
    for check in checks:
        print("ok" if check["passed"] else "FAILED", check["name"], check["detail"], flush=True)
    command = f"python benchmarks/audit_peers.py --quick --engine {engine}"
    passed = all(check["passed"] for check in checks)
    return {"command": command, "passed": passed, **about, "checks": checks, "figures": subject.figures}


def save(engine: str, key: str, result: dict[str, Any]) -> None:
    path = RESULTS / f"audit_{engine}.json"
    old = json.loads(path.read_text())["audits"] if path.exists() else {}
    about = {"date": str(date.today()), "machine": platform.machine(), "cpus": os.cpu_count()}
    path.write_text(json.dumps({**about, "audits": dict(sorted((old | {key: result}).items()))}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", action="append", choices=["native", "transformers", "llamacpp", "vllm"])
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--python", default="", help="interpreter of an environment that has vLLM")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "slipstream" / "audit")
    parser.add_argument("--letters", action="store_true", help="the model of sixteen letters")
    parser.add_argument("--quick", action="store_true", help="only what a few texts show")
    parser.add_argument("--case", type=int, help="only this one, counted from 0")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.letters:
        for engine in given.engine or list(LETTERS):
            for number, (drafter, options) in enumerate(LETTERS[engine]):
                if given.case not in (None, number):
                    continue
                result = run_letters(engine, drafter, options, given.work, given.samples)
                save(engine, f"letters {number}", result)
        return
    folder, gguf = str(cut_folder(given.work)), str(cut_gguf(given.work))
    for engine in given.engine or ["native", "transformers", "llamacpp", "vllm"]:
        for number, words in enumerate(cases(engine, folder, gguf, given.python)):
            if given.case in (None, number) and given.quick:
                save(engine, f"{MODEL} quick {number}", run_quick(engine, words))
            elif given.case in (None, number):
                save(engine, f"{MODEL} {number}", run(engine, words, given.samples, given.threads))


if __name__ == "__main__":
    main()
