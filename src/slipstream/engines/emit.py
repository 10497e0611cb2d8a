"""The configuration of another engine for a plan: its own parameters as data, and the command that a user would type.

Nothing is loaded: files that the other engine reads are named, not fetched."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

from slipstream.core.registry import read_options
from slipstream.engines import engines
from slipstream.engines.vllm import settings as vllm
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.gguf.files import gguf_file
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.lower.peers import PeerSettings, lower_peer

# llama.cpp's names of its n-gram drafters, and its flags for their lookup and draft lengths
LLAMACPP_NGRAMS = {
    "ngram": ("ngram-simple", "size-n", "size-m"),
    "ngram_map": ("ngram-map-k", "size-n", "size-m"),
    "ngram_map4": ("ngram-map-k4v", "size-n", "size-m"),
    "ngram_mod": ("ngram-mod", "n-match", "n-max"),
    "ngram_cache": ("ngram-cache", "", ""),
}


def peer_configuration(plan: Plan, engine: str) -> dict[str, Any]:
    """`configuration`, `command` and `notes` of a checked plan. PlanError if the engine cannot express it."""
    kind: Any = engines.get(engine)
    settings = lower_peer(plan, engine, kind.capabilities.drafters, kind.capabilities.rules)
    options = {key: str(value) for key, value in settings.options.items() if value is not None}
    read_options(kind.config, options, engine)
    emit = {"vllm": _vllm, "llamacpp": _llamacpp, "transformers": _transformers}[engine]
    configuration, command = emit(replace(settings, model=_place(settings.model, engine)))
    return {"configuration": configuration, "command": command, "notes": list(settings.notes)}


def _place(model: str, engine: str) -> str:
    """The files of a model as the other engine reads them, if they are on this machine; otherwise its name."""
    try:
        folder = resolve(model, fetch=False).path
        return str(gguf_file(model) if engine == "llamacpp" else folder)
    except ValueError:
        return model


def _vllm(settings: PeerSettings) -> tuple[dict[str, Any], str]:
    own = read_options(vllm.VllmConfig, {k: str(v) for k, v in settings.options.items()}, "vllm")
    speculative = vllm.speculation(settings.drafter, settings.depth, settings.rule, own)
    context = settings.loading["context"] or 4096
    configuration = vllm.arguments(settings.model, settings.loading["dtype"], context, speculative, own)
    words = ["vllm", "serve", settings.model, "--dtype", settings.loading["dtype"], "--max-model-len", str(context)]
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        if (size := getattr(own, name)) != 1:
            words += [f"--{name.replace('_', '-')}-size", str(size)]
    if speculative is not None:
        words += ["--speculative-config", json.dumps(speculative)]
    return configuration, shlex.join(words)


def _llamacpp(settings: PeerSettings) -> tuple[dict[str, Any], str]:
    own, depth = dict(settings.options), settings.depth
    configuration: dict[str, Any] = {"model": settings.model, "drafter": settings.drafter, "depth": depth, **own}
    words = ["llama-server", "--model", settings.model]
    if settings.drafter == "draft_model":
        if "model" not in own:
            raise ValueError('llamacpp needs the draft model\'s name in the plan: NAME = draft_model("MODEL")')
        words += ["--model-draft", str(own["model"]), "--draft-max", str(depth)]
    elif settings.drafter != "none":
        kind, lookup, length = LLAMACPP_NGRAMS[settings.drafter]
        words += ["--spec-type", kind]
        words += [f"--spec-{kind}-{lookup}", str(own["ngram"])] if lookup and "ngram" in own else []
        words += [f"--spec-{kind}-{length}", str(depth)] if length else []
    return configuration, shlex.join(words)


def _transformers(settings: PeerSettings) -> tuple[dict[str, Any], str]:
    depth = settings.depth
    by_drafter: dict[str, dict[str, Any]] = {
        "none": {},
        "ngram": {"prompt_lookup_num_tokens": depth},
        "draft_model": {"assistant_model": settings.options.get("model"), "num_assistant_tokens": depth},
        "early_exit": {"assistant_early_exit": settings.options.get("exit"), "num_assistant_tokens": depth},
    }
    arguments = by_drafter[settings.drafter]
    given = "".join(f", {key}={value!r}" for key, value in arguments.items())
    return {"model": settings.model, "generate": arguments}, f"model.generate(**inputs{given})"
