"""The verification rules by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.registry import Registry

if TYPE_CHECKING:  # the command line names the rules in its help, without loading torch
    from slipstream.core.interfaces import Verifier

rules: Registry[Verifier] = Registry(
    "rule",
    {
        "greedy": "slipstream.core.verify_match:Greedy",
        "token": "slipstream.core.verify_token:Token",
        "block": "slipstream.core.verify_block:Block",
        "coupled": "slipstream.core.verify_match:Coupled",
        "chosen": "slipstream.core.verify_tree:Chosen",
        "replace": "slipstream.core.verify_tree:Replace",
        "no_replace": "slipstream.core.verify_tree:NoReplace",
        "spectr": "slipstream.core.verify_spectr:SpecTr",
    },
)
