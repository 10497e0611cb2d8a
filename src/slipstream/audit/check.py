"""One line of an audit: what was checked, by which layer of proof, and how it came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    name: str
    layer: str
    passed: bool
    detail: str


LAYERS = {
    "rational": "the rule's law, enumerated in exact fractions: equality, no tolerance",
    "exact": "the shipped loop, every outcome of every draw with its probability, within 1e-12; every draw fresh",
    "rows": "given rows of p and q: accepted + residual = p in float64",
    "sampled": "the shipped loop with its real noise: exact binomial tails, false alarm below 1e-6 per run",
    "replay": "token for token against plain decoding: greedy, and coupled with one seed",
}
