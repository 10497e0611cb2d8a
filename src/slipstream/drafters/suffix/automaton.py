"""A suffix automaton of one or several token sequences: every substring is a path from state 0.

It grows token by token, with at most two states per token. Each state counts its occurrences. The counts rank
continuations, and are bounded in cost: a token updates the `HOPS` longest suffixes that end at it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

HOPS = 32  # suffix links that are followed to count an occurrence
LEAST = 0.1  # a continuation with a smaller share of the counts on its path is not followed


class SuffixAutomaton:
    """State 0 is the empty substring. `end` is the state of the whole sequence read last."""

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [0]  # the state of the longest proper suffix that occurs elsewhere
        self.length = [0]  # tokens of the longest substring of a state
        self._count = [0]
        self._latest = [0]  # tokens read at the last occurrence
        self.size = self.end = 0

    def begin(self) -> None:
        """The next token begins another sequence."""
        self.end = 0

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.end = self._append(token)
            self.size += 1
            self._occurred(self.end)

    def _append(self, token: int) -> int:
        """The state of the sequence followed by the token."""
        before = self.end
        if token in self.next[before]:  # of another sequence
            return self._separate(before, token)
        state = self._new(self.length[before] + 1)
        while token not in self.next[before]:
            self.next[before][token] = state
            if not before:
                return state
            before = self.link[before]
        self.link[state] = self._separate(before, token)
        return state

    def _separate(self, before: int, token: int) -> int:
        """The state reached by the token whose longest substring is that of `before` and the token."""
        after = self.next[before][token]
        if self.length[after] == self.length[before] + 1:
            return after
        state = self._new(self.length[before] + 1)
        self.next[state] = dict(self.next[after])
        self.link[state], self.link[after] = self.link[after], state
        self._count[state], self._latest[state] = self._count[after], self._latest[after]
        while self.next[before].get(token) == after:
            self.next[before][token] = state
            if not before:
                break
            before = self.link[before]
        return state

    def _new(self, length: int) -> int:
        self.next.append({})
        self.link.append(0)
        self.length.append(length)
        self._count.append(0)
        self._latest.append(0)
        return len(self.next) - 1

    def _occurred(self, state: int) -> None:
        for _ in range(HOPS):
            if not state:
                break
            self._count[state] += 1
            self._latest[state] = self.size
            state = self.link[state]

    def follow(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """The state and the length of the longest suffix after one more token."""
        while token not in self.next[state]:
            if not state:
                return 0, 0
            state = self.link[state]
            matched = self.length[state]
        return self.next[state][token], matched + 1

    def chain(self, state: int, depth: int) -> list[int]:
        """The most frequent continuation of a state, up to `depth` tokens, while it is frequent enough."""
        tokens: list[int] = []
        share = 1.0
        while len(tokens) < depth:
            following = self._following(state)
            if len(following) == 1:
                ((token, state),) = following.items()
            elif following:
                token, state = max(following.items(), key=self._rank)
                share *= self._count[state] / sum(self._count[other] for other in following.values())
                if share < LEAST:
                    break
            else:
                break
            tokens.append(token)
        return tokens

    def paths(self, state: int, depth: int, nodes: int) -> list[list[int]]:
        """Several continuations as a tree of `nodes` tokens, grown where counts are largest, the best path first."""
        heap: list[tuple[float, int, list[int], int]] = [(-1.0, 0, [], state)]
        order, leaves = 0, dict[tuple[int, ...], None]()
        while heap and order <= nodes:
            share, _, path, at = heapq.heappop(heap)
            leaves.pop(tuple(path[:-1]), None)
            leaves[tuple(path)] = None
            following = self._following(at) if len(path) < depth else {}
            total = sum(self._count[other] for other in following.values())
            for token, other in sorted(following.items(), key=self._rank, reverse=True):
                order += 1
                if -share * self._count[other] >= LEAST * total:
                    heapq.heappush(heap, (share * self._count[other] / total, order, [*path, token], other))
        return [list(path) for path in leaves if path]

    def _following(self, state: int) -> dict[int, int]:
        """The transitions of a state; at the end of a sequence, those of its longest suffix that goes on."""
        while state and not self.next[state]:
            state = self.link[state]
        return self.next[state] if state else {}

    def _rank(self, transition: tuple[int, int]) -> tuple[int, int]:
        return self._count[transition[1]], self._latest[transition[1]]
