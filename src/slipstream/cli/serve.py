"""`slipstream serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as given
from slipstream.cli.flag_groups import ProfileFlags, with_groups
from slipstream.cli.output.show import console
from slipstream.cli.plan.flags import PlanSource, from_plan

if TYPE_CHECKING:
    from slipstream.serve.config import ServedEngine

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Models by catalog name, Hugging Face id, folder or GGUF file."),
]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every network of this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", help="A file with one API key per line. SLIPSTREAM_API_KEY holds one, too."),
]
Cors = Annotated[
    list[str] | None, typer.Option("--cors-origin", help="A page elsewhere that may call the API, as its origin.")
]


MaxMemory = Annotated[
    str | None, typer.Option(help="Memory for the weights of loaded models, such as 8GiB; idle ones give way.")
]


class LogForm(StrEnum):
    plain = "plain"
    json = "json"


class OwnProcess(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


EngineProcess = Annotated[
    OwnProcess, typer.Option(help="Run each model in a process of its own; auto: where the model runs on a GPU.")
]
ApiServers = Annotated[
    int | None,
    typer.Option(
        "--api-server-count",
        min=1,
        help="HTTP processes in front of the engine's process; by default one, on a GPU up to four.",
    ),
]
MaxLoaded = Annotated[
    int | None, typer.Option(min=1, help="Models in memory at once; one, or all where --max-memory is given.")
]
WarmUp = Annotated[
    bool, typer.Option("--warm-up", help="On a GPU, capture the usual cycles before the server is ready.")
]
LogFormat = Annotated[LogForm, typer.Option(help="Lines of the log on standard error, one per request.")]


@with_groups
def serve(
    *,
    context: typer.Context,
    models: Models = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    engine: given.EngineName = "native",
    drafter: given.DrafterName = "ngram",
    verify: given.AnyRule = None,
    depth: given.Depth = None,
    tree: given.Shape = None,
    option: given.Settings = None,
    plan: PlanSource = None,
    known: ProfileFlags,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows that decode together (CPU 16, GPU 256).")] = None,
    warm_up: WarmUp = False,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests under way or waiting; more get 429.")] = 256,
    max_seconds: Annotated[float, typer.Option(help="Seconds from a request to its last token.")] = 600.0,
    max_loaded: MaxLoaded = None,
    max_memory: MaxMemory = None,
    engine_process: EngineProcess = OwnProcess.auto,
    api_server_count: ApiServers = None,
    api_key_file: KeyFile = None,
    cors_origin: Cors = None,
    log_format: LogFormat = LogForm.plain,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts into the log, too.")] = False,
    dtype: given.Dtype = "auto",
    device: given.Device = "auto",
    invariant: given.Invariant = None,
    trust_remote_code: given.TrustRemoteCode = False,
) -> None:
    """Serve models over HTTP with OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models. Ctrl-C stops."""
    try:
        from slipstream.serve.config import ServedEngine, ServerConfig, ServerLimits, parse_bytes
        from slipstream.serve.run import serve_forever
    except ImportError as error:
        raise ValueError(f"serving needs {error.name}; pip install slipstream-lm[serve]") from error
    loading: dict[str, Any] = {"dtype": dtype, "device": device, "invariant": invariant}
    loading |= {
        "trust_remote_code": trust_remote_code,
        **_native(engine, tree, rows, warm_up),
        **known.arguments(engine),
    }
    process = _own_process(engine_process, engine, device, api_server_count)
    served = ServedEngine(engine, drafter, verify, depth, given.settings(option), loading, process=process)
    if plan is not None:
        models, served = _planned(context, plan, models, served)
    config = ServerConfig(
        models=tuple(models or ("smollm2-135m",)),
        engine=served,
        limits=ServerLimits(max_requests=max_requests, max_seconds=max_seconds),
        api_keys=api_keys(api_key_file),
        cors_origins=tuple(cors_origin or ()),
        max_loaded=max_loaded or (1 if max_memory is None else max(1, len(models or ()))),
        max_memory=None if max_memory is None else parse_bytes(max_memory),
        log_prompts=log_prompts,
        api_servers=api_server_count or _api_servers(engine_process, process),
    )
    console(stderr=True).print(f"Loading {config.models[0]}.")
    serve_forever(config, host, port, partial(_say_ready, config.models), log_format)


def _say_ready(models: Sequence[str], address: str) -> None:
    console(stderr=True).print(f"Serving {', '.join(models)} at {address}/v1. Ctrl-C stops.")


def _native(engine: str, tree: str | None, rows: int | None, warm_up: bool) -> dict[str, Any]:
    """Arguments that only the native engine takes."""
    if engine == "native":
        from slipstream.engines.native.scheduler import Limits

        return {"shape": tree, "limits": Limits(rows=rows), "warm_up": warm_up}
    if warm_up:
        raise ValueError(f"--warm-up needs the native engine; {engine} warms up as it does")
    if tree is not None:
        raise ValueError(f"--tree needs the native engine; {engine} drafts as it does")
    return {}


def _own_process(asked: OwnProcess, engine: str, device: str, api_servers: int | None) -> bool:
    """Whether models run in processes of their own. The peers have such processes, or are not made for many clients."""
    if asked is not OwnProcess.auto or (api_servers or 1) > 1:
        return asked is not OwnProcess.off
    if engine != "native" or device != "auto":
        return engine == "native" and device.startswith("cuda")
    import torch

    return torch.cuda.is_available()


def _api_servers(asked: OwnProcess, process: bool) -> int:
    """HTTP processes where their number was not given: one for four cores of a machine with a GPU, at most 4."""
    from slipstream.kernels.machine import cores

    return min(4, max(1, cores() // 4)) if process and asked is OwnProcess.auto else 1


def _planned(
    context: typer.Context, plan: str, models: list[str] | None, served: ServedEngine
) -> tuple[list[str], ServedEngine]:
    """The model of a plan, and the engine that runs it."""
    stated = from_plan(context, plan)
    if models:
        raise ValueError(f"a plan and a model are both given; the plan serves {stated['model']}")
    limits = {name: value for name, value in served.loading.items() if name in ("limits", "profile", "learn")}
    drafting = {name: stated[name] for name in ("drafter", "depth", "plan")}
    return [stated["model"]], replace(served, loading=limits, **drafting)


def api_keys(file: Path | None) -> tuple[str, ...]:
    """The legal API keys; none where nobody asked for any."""
    own = os.environ.get("SLIPSTREAM_API_KEY", "").strip()
    keys = [own] if own else []
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not a text file with one API key per line") from error
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError(f"{file} holds no API key; write one per line")
    return tuple(keys)
