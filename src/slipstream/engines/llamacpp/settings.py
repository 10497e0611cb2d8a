"""llama.cpp's own parameters: of the server, and of one request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engines.job import Job
from slipstream.kernels.machine import cores
from slipstream.models.sources.gguf.files import gguf_file

# our names and llama.cpp's names of its n-gram drafters
KINDS = {
    "ngram": "NGRAM_SIMPLE",
    "ngram_map": "NGRAM_MAP_K",
    "ngram_map4": "NGRAM_MAP_K4V",
    "ngram_mod": "NGRAM_MOD",
    "ngram_cache": "NGRAM_CACHE",
}
NO_DRAFT_MODEL = "a draft model needs a name: --drafter NAME, or -o model=NAME"


@dataclass(frozen=True)
class LlamaCppConfig:
    """Engine options, as `-o key=value`. 0 or less means llama.cpp's default; for `threads`, all usable cores."""

    model: str = ""  # the draft model
    ngram: int = 0  # tokens of the n-gram that is looked up
    hits: int = 0  # how often an n-gram must have occurred
    p_min: float = -1.0  # a draft model stops if its most probable token is less probable
    probabilistic: int = 0  # 1: a draft model samples its tokens, and they are verified by their probabilities
    threads: int = 0
    rows: int = 4  # requests that decode at the same time
    cache: int = 0  # 1: reuse the cache of prompts that were read before
    library: str = ""  # folder of a llama.cpp built for this machine; "wheel": the Python package. Empty: what there is


def parameters(file: Path, drafter: str, depth: int | None, context: int, options: LlamaCppConfig) -> Any:
    """The parameters of the server."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_parallel = options.rows
    params.n_ctx = context * options.rows
    params.warmup = True
    params.verbosity = -1
    params.cpuparams.n_threads = options.threads if options.threads > 0 else cores()  # llama.cpp's default: all cores
    if drafter != "none":
        kind = "DRAFT_SIMPLE" if drafter == "draft_model" else KINDS[drafter]
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
        _drafting(params.speculative, drafter, depth, options)
    return params


def _drafting(own: Any, drafter: str, depth: int | None, options: LlamaCppConfig) -> None:
    if drafter == "draft_model":
        if not options.model:
            raise ValueError(NO_DRAFT_MODEL)
        own.draft.mparams.path = str(gguf_file(options.model))
        own.draft.probabilistic = bool(options.probabilistic)
        own.draft.p_min = options.p_min if options.p_min >= 0 else own.draft.p_min
        own.draft.n_max = depth or own.draft.n_max
    elif drafter == "ngram_mod":
        own.ngram_mod.n_match = options.ngram or own.ngram_mod.n_match
        own.ngram_mod.n_max = depth or own.ngram_mod.n_max
        own.ngram_mod.n_min = min(own.ngram_mod.n_min, own.ngram_mod.n_max)
    elif drafter != "ngram_cache":
        table = {"ngram": own.ngram_simple, "ngram_map": own.ngram_map_k, "ngram_map4": own.ngram_map_k4v}[drafter]
        table.size_n = options.ngram or table.size_n
        table.size_m = depth or table.size_m
        table.min_hits = options.hits or table.min_hits


def server_arguments(file: Path, drafter: str, depth: int | None, context: int, options: LlamaCppConfig) -> list[str]:
    """The command line of llama-server, with the same meaning as `parameters`."""
    arguments: dict[str, object] = {
        "model": file,
        "parallel": options.rows,
        "ctx-size": context * options.rows,
        "threads": options.threads if options.threads > 0 else cores(),
        "cache-ram": 0 if not options.cache else None,
    }
    if drafter == "draft_model":
        arguments |= _draft_model_arguments(depth, options)
    elif drafter != "none":
        kind = KINDS[drafter].lower().replace("_", "-")
        length, size = ("n-match", "n-max") if drafter == "ngram_mod" else ("size-n", "size-m")
        arguments["spec-type"] = kind
        if drafter != "ngram_cache":
            arguments |= {f"spec-{kind}-{length}": options.ngram or None, f"spec-{kind}-{size}": depth}
        if drafter == "ngram_mod" and depth is not None:
            arguments[f"spec-{kind}-n-min"] = 0
        elif drafter != "ngram_cache":
            arguments[f"spec-{kind}-min-hits"] = options.hits or None
    given = {name: value for name, value in arguments.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def _draft_model_arguments(depth: int | None, options: LlamaCppConfig) -> dict[str, object]:
    if not options.model:
        raise ValueError(NO_DRAFT_MODEL)
    if options.probabilistic:
        raise ValueError("probabilistic=1 is for the Python package; add -o library=wheel, or leave it out")
    return {
        "spec-type": "draft-simple",
        "spec-draft-model": gguf_file(options.model),
        "spec-draft-n-max": depth,
        "spec-draft-p-min": options.p_min if options.p_min >= 0 else None,
    }


def sampling(job: Job, own_ends: Iterable[int], cache: bool) -> dict[str, Any]:
    """The body of one request. Every sampler is named, in the order of `core/sampling.py`: temperature first."""
    request = job.row.request
    how = request.sampling
    bias: list[list[Any]] = [[token, value] for token, value in how.logit_bias.items()]
    bias += [[token, False] for token in sorted(how.suppress_tokens)]
    return {
        "prompt": list(request.prompt),
        "n_predict": request.max_tokens,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": how.temperature,
        "top_k": how.top_k,
        "top_p": how.top_p,
        "min_p": how.min_p,
        "repeat_penalty": how.repetition_penalty,
        "repeat_last_n": len(request.prompt) + request.max_tokens,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": bias,
        "seed": -1 if how.seed is None else how.seed % (2**32 - 1),  # 32 bits; all ones means a random seed
        "ignore_eos": request.ends.isdisjoint(own_ends),  # llama.cpp implements it by suppressing end tokens
        "n_probs": 0 if job.top is None else max(1, job.top),
        "cache_prompt": cache,  # off by default: a text must not depend on earlier requests
        "return_tokens": True,
        "stream": True,
        "timings_per_token": True,
    }
