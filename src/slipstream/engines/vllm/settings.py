"""vLLM's own parameters: of the engine, of its speculation, and of one request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engines.job import Job
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.folder import read_json

RULES = {"token": "standard", "block": "block"}  # our names and vLLM's names
DEPTH = 4


@dataclass(frozen=True)
class VllmConfig:
    """Options of the engine, as `-o key=value`."""

    python: str = ""  # the interpreter of an environment with vLLM; default: this one
    model: str = ""  # the draft model, or the EAGLE head
    ngram: int = 3  # tokens of the longest match
    ngram_min: int = 1  # tokens of the shortest match
    sample: str = "greedy"  # how a draft model chooses its tokens: greedy or probabilistic
    eager: int = -1  # 1: without compilation, 0: with; -1: without on a CPU
    memory: int = 2  # GiB for the KV cache on a CPU
    rows: int = 16  # requests that decode at the same time
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1


def arguments(
    model: str, dtype: str, context: int, speculation: dict[str, Any] | None, own: VllmConfig
) -> dict[str, Any]:
    """Arguments of vLLM's engine."""
    return {
        "model": model,
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": own.rows,
        "max_logprobs": 100,
        "enforce_eager": None if own.eager < 0 else bool(own.eager),
        "enable_prefix_caching": False,  # a text must not depend on earlier requests
        "generation_config": "vllm",  # no sampling defaults of the model
        "tensor_parallel_size": own.tensor_parallel,
        "pipeline_parallel_size": own.pipeline_parallel,
        "data_parallel_size": own.data_parallel,
        "speculative_config": speculation,
    }


def speculation(drafter: str, depth: int | None, verify: str | None, own: VllmConfig) -> dict[str, Any] | None:
    if drafter == "none":
        return None
    wanted: dict[str, Any] = {"method": drafter, "num_speculative_tokens": depth or DEPTH}
    if verify is not None:
        wanted["rejection_sample_method"] = RULES[verify]
    if drafter == "ngram":
        wanted |= {"prompt_lookup_max": own.ngram, "prompt_lookup_min": min(own.ngram_min, own.ngram)}
    elif drafter in ("draft_model", "eagle"):
        if not own.model:
            raise ValueError(f"{drafter} needs a model to draft with: -o model=NAME")
        wanted |= {"model": str(_draft_folder(own.model, drafter)), "draft_sample_method": own.sample}
        if drafter == "eagle" and _is_eagle3(Path(wanted["model"])):
            wanted["method"] = "eagle3"
    return wanted


def _draft_folder(name: str, drafter: str) -> Path:
    """The files of a draft model or head. A head's folder has no tokenizer."""
    folder = Path(name).expanduser()
    return folder if drafter == "eagle" and (folder / "config.json").is_file() else resolve(name).path


def _is_eagle3(folder: Path) -> bool:
    config = read_json(folder / "config.json")
    kinds = [config.get("speculators_model_type"), *config.get("architectures", ())]
    return any("eagle3" in str(kind).lower() for kind in kinds)


def sampling(job: Job) -> dict[str, Any]:
    """The parameters of one request. All end tokens are listed, so that no others end it."""
    request = job.row.request
    how = request.sampling
    wanted: dict[str, Any] = {
        "temperature": how.temperature,
        "top_k": how.top_k,
        "top_p": how.top_p,
        "min_p": how.min_p,
        "repetition_penalty": how.repetition_penalty,
        "presence_penalty": how.presence_penalty,
        "frequency_penalty": how.frequency_penalty,
        "seed": how.seed,
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "ignore_eos": True,
        "stop_token_ids": sorted(request.ends),
        "logprobs": job.top,
    }
    if how.logit_bias:
        wanted["logit_bias"] = {str(token): value for token, value in how.logit_bias.items()}
    if how.allowed_token_ids is not None:
        wanted["allowed_token_ids"] = sorted(how.allowed_token_ids - how.suppress_tokens)
    return wanted
