"""The verification rules by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.registry import Registry

if TYPE_CHECKING:  # the command line names the rules in its help, without loading torch
    from slipstream.core.interfaces import Verifier

rules: Registry[Verifier] = Registry(
    "rule",
    {
        "greedy": "slipstream.core.verify.match:Greedy",
        "token": "slipstream.core.verify.token:Token",
        "block": "slipstream.core.verify.block:Block",
        "coupled": "slipstream.core.verify.match:Coupled",
        "chosen": "slipstream.core.verify.tree:Chosen",
        "replace": "slipstream.core.verify.tree:Replace",
        "no_replace": "slipstream.core.verify.tree:NoReplace",
        "spectr": "slipstream.core.verify.spectr:SpecTr",
    },
)
