"""`slipstream models`: what there is, fetched, looked into, converted, compiled, removed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.show import Json, console, print_json

Name = Annotated[str, typer.Argument(help="A catalog name, Hugging Face id, folder or GGUF file.")]

models = typer.Typer(
    help="List, pull, inspect, convert, compile and remove models.", no_args_is_help=True, rich_markup_mode=None
)


@models.command("list")
def list_models(as_json: Json = False) -> None:
    """Models of the catalog and those on this machine."""
    from slipstream.models import catalog

    here = {model.name: model for model in catalog.installed()}
    if as_json:
        entries = [{"name": name, "installed": name in here} for name in sorted({*here, *catalog.catalog_names()})]
        print_json({"models": entries})
        return
    for name in sorted({*here, *catalog.catalog_names()}):
        size = f"{here[name].bytes / 1e6:.0f} MB" if name in here else "not fetched yet"
        console().print(f"{name:32} {size}")


@models.command()
def pull(name: Name) -> None:
    """Fetch a model and make it ready."""
    from slipstream.models import catalog

    found = catalog.pull(name)
    console().print(f"{found.name} is ready: {found.path}")


@models.command()
def inspect(name: Name, as_json: Json = False) -> None:
    """What a model is made of."""
    from slipstream.models import catalog

    facts = catalog.inspect(name)
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        console().print(f"{key:20} {value}")


@models.command()
def convert(
    source: Name, folder: Annotated[Path, typer.Argument(help="Where to write safetensors and tokenizer.")]
) -> None:
    """Write a model as a folder of safetensors; an eagle head for vLLM, or a published EAGLE-3 head as one of ours."""
    from slipstream.drafters.exchange import convert_head
    from slipstream.models import catalog

    console().print(f"written: {convert_head(source, folder) or catalog.convert(source, folder)}")


@models.command("compile")
def compile_model(
    name: Name,
    dtype: Annotated[str, typer.Option(help="auto, or a8: to run with activations of eight bits.")] = "auto",
) -> None:
    """Make a model start faster on this CPU; after a first use that is done anyway."""
    from slipstream.engines.native.build import compile_target

    path = compile_target(name, dtype)
    console().print(f"{name} is compiled: {path.stat().st_size / 1e6:.0f} MB in {path}")


@models.command()
def remove(name: Name) -> None:
    """Delete a fetched or converted model from the cache."""
    from slipstream.models import catalog

    console().print(f"{catalog.remove(name) / 1e6:.0f} MB given back")
