"""`slipstream models`: list, pull, inspect, verify, convert, compile and remove models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.output.show import Json, print_json

if TYPE_CHECKING:
    from slipstream.models.sources.verify import FileCheck

Name = Annotated[str, typer.Argument(help="A catalog name, Hugging Face id, folder or GGUF file.")]
ModelOrDrafter = Annotated[
    str, typer.Argument(help="A catalog name, Hugging Face id, folder or GGUF file, or a drafter's name or folder.")
]

models = typer.Typer(
    help="List, pull, inspect, verify, convert, compile and remove models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@models.command("list")
def list_models(as_json: Json = False) -> None:
    """Models of the catalog, those on this machine, and the drafters that are shipped."""
    from slipstream.drafters.files.describe import summaries
    from slipstream.models.sources import catalog

    here = {model.name: model for model in catalog.installed()}
    names = sorted({*here, *catalog.catalog_names()})
    drafters = summaries()
    if as_json:
        entries: list[dict[str, Any]] = [{"name": name, "kind": "model", "installed": name in here} for name in names]
        entries += [{**drafter, "installed": True} for drafter in drafters]
        print_json({"models": entries})
        return
    for name in names:
        size = f"{here[name].bytes / 1e6:.0f} MB" if name in here else "not fetched yet"
        print(f"{name:32} {size}")
    for drafter in drafters:
        size = f"{drafter['bytes'] / 1e6:.1f} MB"
        print(f"{drafter['name']:32} {size:15} {drafter['kind']} drafter for {drafter['target']}, shipped")


@models.command()
def pull(name: Name, trust_remote_code: flags.TrustRemoteCode = False) -> None:
    """Fetch a model and make it ready; one that is here already is checked, and fetched again if damaged."""
    from slipstream.models.sources import catalog

    model = catalog.pull(name, trust_remote_code=trust_remote_code)
    print(f"{model.name} is ready: {model.path}")


@models.command()
def inspect(name: ModelOrDrafter, trust_remote_code: flags.TrustRemoteCode = False, as_json: Json = False) -> None:
    """Show the properties of a model or a drafter."""
    from slipstream.drafters.files.describe import describe_drafter, drafter_folder
    from slipstream.models.sources import catalog

    if folder := drafter_folder(name):
        facts = describe_drafter(name, folder)
    else:
        facts = catalog.inspect(name, trust_remote_code=trust_remote_code)
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key:20} {value}")


@models.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models or drafters; without any, all that slipstream keeps or ships.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check files against the sha256 recorded when they were fetched or converted; exit code 1 if any is damaged."""
    from slipstream.drafters.files.shipped import shipped
    from slipstream.models.sources import catalog

    names = names or [*(own.name for own in catalog.installed()), *shipped()]
    checks = {}
    for name in names:
        checks[name] = _check(name)
        if not as_json:
            print("\n".join(_verdict(name, checks[name])), flush=True)
    passed = not any(check.problem for file_checks in checks.values() for check in file_checks)
    if as_json:
        entries = [
            {"name": name, "files": [asdict(check) for check in file_checks]} for name, file_checks in checks.items()
        ]
        print_json({"passed": passed, "models": entries})
    if not passed:
        raise typer.Exit(1)


def _check(name: str) -> list[FileCheck]:
    from slipstream.drafters.files.describe import drafter_folder, verify_drafter
    from slipstream.models.sources import catalog

    folder = drafter_folder(name)
    return verify_drafter(folder) if folder else catalog.verify(name)


def _verdict(name: str, checks: list[FileCheck]) -> list[str]:
    """Lines for a terminal: every problem, or the number of compared files."""
    if problems := [check for check in checks if check.problem]:
        remedy = f"`slipstream models pull {name}` fetches or converts a model again"
        return [*(f"DAMAGED {name}: {check}" for check in problems), f"        {remedy}"]
    compared = [check for check in checks if check.recorded]
    size = sum(check.bytes for check in compared) / 1e6
    verb = "matches its" if len(compared) == 1 else "match their"
    line = f"ok      {name}: {_files(len(compared))} {verb} recorded checksum ({size:.0f} MB)"
    others = len(checks) - len(compared)
    return [f"{line}; {_files(others)} without one" if others else line]


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


@models.command()
def convert(
    source: ModelOrDrafter,
    folder: Annotated[Path, typer.Argument(help="Where to write safetensors and tokenizer.")],
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Write a model as a folder of safetensors; an eagle or dflash drafter for vLLM, or a published one as ours."""
    from slipstream.drafters.files.checkpoints import convert_head
    from slipstream.models.sources import catalog

    path = convert_head(source, folder) or catalog.convert(source, folder, trust_remote_code=trust_remote_code)
    print(f"written: {path}")


@models.command("compile")
def compile_model(
    name: Name,
    dtype: Annotated[str, typer.Option(help="auto, or a8 for 8-bit activations.")] = "auto",
) -> None:
    """Compile a model so that it starts faster on this CPU. The first use of a model does this in the background."""
    from slipstream.models.load_target import compile_target

    path = compile_target(name, dtype)
    print(f"{name} is compiled: {path.stat().st_size / 1e6:.0f} MB in {path}")


@models.command()
def remove(name: Name) -> None:
    """Delete a fetched or converted model from the cache."""
    from slipstream.models.sources import catalog

    print(f"{catalog.remove(name) / 1e6:.0f} MB given back")
