"""torch without its rules for tensors without data: `generate` leaves them out until something may need them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIGHT = """if True:
    import sys
    from importlib import import_module
    from threading import Thread
    from types import SimpleNamespace
    from slipstream.cli.light_torch import import_torch

    def start(command="generate", *given):
        source = lambda name: SimpleNamespace(name="COMMANDLINE" if name in given else "DEFAULT")
        params = dict.fromkeys(["prompt", "max_tokens", "drafter", *given])
        import_torch(SimpleNamespace(info_name=command, params=params, get_parameter_source=source))
"""
TABLES = """if True:
    import json, sys, torch
    from torch import _decomp
    torch.Generator()
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("Meta")
    tables = [_decomp.decomposition_table, *_decomp.global_decomposition_table.values()]
    modules = [name for name in sys.modules if name.split(".")[0] == "torch"]
    print(json.dumps([sorted(map(str, names)) for names in (modules, registered, *tables)]))
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "later",
    [
        "import torch._decomp",
        "import torch._meta_registrations",
        "import torch._dynamo",
        "try: import a_package_that_is_not_there\nexcept ImportError: pass",
        "threads = [Thread(target=import_module, args=[name]) for name in ('torch.testing', 'safetensors', 'pytest')]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()",
    ],
)
def test_later_imports_have_the_whole_torch(later):
    light = f"start()\nassert 'torch._decomp' not in sys.modules\n{later}\n"
    light += "assert not [finder for finder in sys.meta_path if type(finder).__name__ == 'LaterFinder']\n"
    assert json.loads(run(LIGHT + light + TABLES)) == json.loads(run(f"{LIGHT}import torch\n{later}\n{TABLES}"))


def test_a_light_torch_computes_and_has_no_empty_module():
    code = """
start("generate", "prompt", "max_tokens")
import torch
print(float(torch.nn.Linear(3, 3)(torch.zeros(2, 3)).sum()) < 9, torch.manual_seed(0).initial_seed())
print(hasattr(torch, "_meta_registrations"), "torch._meta_registrations" in sys.modules)
"""
    assert run(LIGHT + code).split() == ["True", "0", "False", "False"]


@pytest.mark.parametrize(
    ("command", "given"), [("chat", ()), ("generate", ("drafter",)), ("generate", ("device",)), ("generate", ("plan",))]
)
def test_other_commands_and_options_have_the_whole_torch(command, given):
    code = f"{LIGHT}\nstart({command!r}, *{given!r})\nimport torch\nprint('torch._decomp' in sys.modules)"
    assert run(code).split() == ["True"]
