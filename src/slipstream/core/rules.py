"""The verification rules by name."""

from __future__ import annotations

from slipstream.core.interfaces import Verifier
from slipstream.core.registry import Registry

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
