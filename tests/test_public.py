"""What others build on, frozen: verbs and flags, public names, what an import pulls in."""

from __future__ import annotations

import subprocess
import sys

import typer

from slipstream.cli.app import app

FLAGS = {
    "audit": ["--verify", "--depth", "--table", "--seed", "--samples", "--self-test", "--json", "--help"],
}


def test_verbs_and_flags_are_frozen():
    command = typer.main.get_command(app)
    found = {
        name: [option for parameter in verb.get_params(verb.make_context(name, [], resilient_parsing=True))
               for option in parameter.opts if option.startswith("--")]
        for name, verb in command.commands.items()
    }  # fmt: skip
    assert found == FLAGS


def test_the_import_is_light():
    heavy = "transformers", "fastapi", "matplotlib", "typer"
    code = f"import slipstream, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_modules_import_without_what_a_bare_machine_lacks():
    """Core, kernels, models, drafters, plan and engines run with torch, transformers and what those bring along."""
    missing = "jaxtyping", "typer", "rich", "gguf", "matplotlib", "fastapi"
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing}))\n"
        "import pkgutil, importlib, slipstream\n"
        "names = [m.name for m in pkgutil.walk_packages(slipstream.__path__, 'slipstream.')]\n"
        "bare = [n for n in names if n.split('.')[1] in ('core', 'kernels', 'models', 'drafters', 'plan', 'engines')]\n"
        "[importlib.import_module(n) for n in bare]\n"
        "print(len(bare))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15
