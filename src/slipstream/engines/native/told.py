"""What the record of a captured cycle says, in the words the host uses: a draft, and the verdict on it.

The target's cache holds accepted tokens only, one after the other, when the record is read: these are what it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.law import OneHot
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Draft, Verdict


@dataclass(frozen=True, eq=False)
class Told:
    draft: Draft
    verdict: Verdict
    kept: list[list[int]]  # accepted tokens, by row


def told_chains(record: Sequence[Sequence[float]], depth: int, vocab: int) -> Told:
    """Of each row: accepted, next token, whether all had a law, drafted; `depth` tokens and their chances."""
    counts = [(int(line[0]), int(line[3])) for line in record]
    tokens = [[int(x) for x in line[4 : 4 + int(line[3])]] for line in record]
    chance = torch.tensor([x for line in record for x in line[4 + depth : 4 + depth + int(line[3])]])
    token = torch.tensor([x for line in tokens for x in line], dtype=torch.long)
    draft = Draft(Tree.chains([len(line) for line in tokens]), token, OneHot(token, vocab), None, chance)
    whole = [kept == drafted for kept, drafted in counts]
    verdict = _verdict(_spans([n for _, n in counts], [kept for kept, _ in counts]), record, whole)
    return Told(draft, verdict, [line[:kept] for line, (kept, _) in zip(tokens, counts, strict=True)])


def told_trees(record: Sequence[Sequence[float]], nodes: int, vocab: int) -> Told:
    """Of each row: accepted, next token, whether all had a law, drafted; `nodes` tokens and parents; the path."""
    lists, token, paths, inner = list[tuple[int, int]](), list[int](), list[list[int]](), list[bool]()
    for r, line in enumerate(record):
        kept, _, _, drafted, *rest = map(int, line)
        parents, path, first = rest[nodes : nodes + drafted], rest[2 * nodes : 2 * nodes + kept], len(lists)
        lists += [(r, first + parent if parent >= 0 else -1) for parent in parents]
        token += rest[:drafted]
        paths.append([first + node for node in path])
        inner.append((path[-1] if path else -1) in parents)
    row, parent = torch.tensor(lists, dtype=torch.long).reshape(-1, 2).T
    tree, word = Tree(len(record), row, parent), torch.tensor(token, dtype=torch.long)
    tree.__dict__["lists"] = lists  # known here, so that nobody has to read it back
    draft = Draft(tree, word, OneHot(word, vocab), Siblings.CHOSEN)
    verdict = _verdict(paths, record, [not one for one in inner])
    return Told(draft, verdict, [[token[i] for i in path] for path in paths])


def _spans(sizes: Sequence[int], kept: Sequence[int]) -> list[list[int]]:
    """The first nodes of each row, where rows have so many, packed one after the other."""
    paths, first = list[list[int]](), 0
    for size, count in zip(sizes, kept, strict=True):
        paths.append([*range(first, first + count)])
        first += size
    return paths


def _verdict(paths: Sequence[Sequence[int]], record: Sequence[Sequence[float]], bonus: Sequence[bool]) -> Verdict:
    width = max(map(len, paths))
    table = [[*path, *[-1] * (width - len(path))] for path in paths]
    return Verdict(
        torch.tensor(table, dtype=torch.long).reshape(len(paths), width),
        torch.tensor([int(line[1]) for line in record]),
        torch.tensor(bonus),
    )
