"""Checks of requests against the capabilities of a peer: features, drafters, rules and devices."""

from __future__ import annotations

from typing import Any

from slipstream.core.sampling import Sampling
from slipstream.drafters import drafters
from slipstream.engines.base import Capabilities, GenerationOptions
from slipstream.models.sources.catalog import names_model


def refuse(engine: str, can: Capabilities, sampling: Sampling, options: GenerationOptions, drafting: bool) -> None:
    """Raise ValueError for the first requested feature that the engine does not offer."""
    asked = _unusual(sampling, Sampling())
    if beyond := sorted(asked - can.sampling):
        raise ValueError(f"{engine} does not offer {', '.join(beyond)}; it takes {', '.join(sorted(can.sampling))}")
    constraints = dict.fromkeys(("grammar", "json_schema", "regex"), can.grammar)
    offered = {**constraints, "logprobs": can.logprobs, "prompt_logprobs": can.prompt_logprobs}
    offered |= {"min_tokens": can.min_tokens, "prediction": can.prediction}
    wanted = _unusual(options, GenerationOptions()) & offered.keys()
    for name in wanted:
        if not offered[name]:
            raise ValueError(f"{engine} does not offer {name} here; leave it out or use another engine")
    if drafting and (apart := sorted((asked | wanted) & can.not_drafting)):
        raise ValueError(f"{engine} offers {', '.join(apart)} with plain decoding only; use the drafter none")


def _unusual(asked: Any, usual: Any) -> set[str]:
    """The names of the fields that differ from their defaults."""
    return {name for name, value in vars(usual).items() if getattr(asked, name) != value}


def check_drafter(engine: str, can: Capabilities, name: str) -> None:
    if name not in can.drafters:
        raise ValueError(f"the engine {engine} cannot draft with {name!r}; it offers {', '.join(can.drafters)}")


def named_drafter(engine: str, can: Capabilities, name: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The kind of drafter that a name means, and its options. A model's name becomes the option `model`."""
    registered = name in can.drafters or name in drafters
    if not registered and names_model(name):
        name, options = "draft_model", {"model": name, **options}
    check_drafter(engine, can, name)
    return name, options


def check_rule(engine: str, can: Capabilities, verify: str | None) -> None:
    if verify is None or verify in can.rules:
        return
    if can.rules:
        raise ValueError(f"{engine} has no rule {verify!r}; it has {', '.join(can.rules)}")
    raise ValueError(f"{engine} has a verification rule of its own; leave out verify={verify}")


def check_device(engine: str, device: str) -> None:
    """Raise ValueError for a device if the engine chooses its own."""
    if device != "auto":
        raise ValueError(f"device is {device!r}; {engine} chooses its own, so leave it out")
