"""Settings of the server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from slipstream.plan.ir.nodes import Plan


@dataclass(frozen=True)
class ServedEngine:
    """How models are opened; the same for all models of a server."""

    engine: str = "native"
    drafter: str = "none"
    verify: str | None = None
    depth: int | None = None
    options: dict[str, str] = field(default_factory=dict)  # of the drafter, or of a peer
    loading: dict[str, Any] = field(default_factory=dict)  # dtype, device, shape, …
    plan: Plan | None = None  # in place of drafter, verify and depth
    process: bool = False  # each model runs in a process of its own


@dataclass(frozen=True)
class ServerLimits:
    """What one server takes. Everything beyond is refused with a sentence, never left waiting."""

    max_requests: int = 256  # under way or waiting; more get 429
    max_requests_per_key: int = 128  # the same of one API key, so that one user cannot take the whole queue
    max_body: int = 4 << 20  # bytes of a request
    max_audio: int = 25 << 20  # bytes of a request with audio
    max_seconds: float = 600.0  # from a request to its last token
    read_seconds: float = 60.0  # that a client has to send a request
    max_samples: int = 64  # prompts times n of one request
    shutdown_seconds: float = 10.0  # that streams have to finish when the server stops

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be more than 0")


@dataclass(frozen=True)
class ServerConfig:
    models: tuple[str, ...] = ("smollm2-135m",)  # the first is loaded at the start, others when they are asked for
    engine: ServedEngine = field(default_factory=ServedEngine)
    limits: ServerLimits = field(default_factory=ServerLimits)
    api_keys: tuple[str, ...] = ()  # none: everybody may ask
    cors_origins: tuple[str, ...] = ()  # pages elsewhere that may call the API
    max_loaded: int = 1  # models in memory at once; the one that was idle longest gives way
    max_memory: int | None = None  # bytes that the weights of models in memory may take together
    log_prompts: bool = False  # else no line of the log holds what was asked
    api_servers: int = 1  # HTTP processes; more than one need engines in processes of their own

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("there is no model to serve; name at least one")
        if self.max_loaded < 1:
            raise ValueError(f"max_loaded is {self.max_loaded}; it must be 1 or more")
        if self.api_servers < 1:
            raise ValueError(f"api_servers is {self.api_servers}; it must be 1 or more")
        if self.api_servers > 1 and not self.engine.process:
            raise ValueError("several HTTP processes need the engine in a process of its own; use --engine-process on")


def parse_bytes(text: str) -> int:
    """Bytes as people write them: 8GiB, 500 MB, 1.5G."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no number of bytes; write it as 8GiB or 500MB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " "))


def shown_bytes(count: int) -> str:
    power = next(power for power in (4, 3, 2, 1, 0) if count >= 1024**power or not power)
    return f"{count / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
