"""Earlier outputs of an engine, one history for each tenant, bounded in memory.

A history is a list of segments, each a suffix automaton of several outputs. If all segments together hold too many
tokens, the least recently used one is dropped. A segment is used when it is written or drafted from.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.drafters.suffix.automaton import SuffixAutomaton

SEGMENTS = 4  # that the memory is divided into
CONTEXT = 64  # tokens before a position that are matched


class History:
    """Outputs of at most `capacity` tokens; about half a kilobyte is needed for each."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._segments: dict[str, list[SuffixAutomaton]] = {}  # by tenant, the latest last
        self._tenants: dict[SuffixAutomaton, str] = {}  # of all segments, the least recently used first

    def of(self, tenant: str) -> list[SuffixAutomaton]:
        """The segments of a tenant, the latest last."""
        return self._segments.get(tenant, [])

    def add(self, tenant: str, output: Sequence[int]) -> None:
        """Remember an output. Of a very long one the last tokens are kept."""
        part = max(1, self.capacity // SEGMENTS)
        output = output[-part:]
        if not self.capacity or not output:
            return
        segments = self._segments.setdefault(tenant, [])
        if not segments or segments[-1].size + len(output) > part:
            segments.append(SuffixAutomaton())
            self._tenants[segments[-1]] = tenant
        segments[-1].begin()
        segments[-1].extend(output)
        self.use(segments[-1])
        self.size += len(output)
        while self.size > self.capacity:
            self._drop()

    def use(self, segment: SuffixAutomaton) -> None:
        """Mark a segment as used."""
        self._tenants[segment] = self._tenants.pop(segment)

    def _drop(self) -> None:
        """Drop the least recently used segment. The time does not depend on the number of tenants."""
        segment, tenant = next(iter(self._tenants.items()))
        del self._tenants[segment]
        self.size -= segment.size
        self._segments[tenant].remove(segment)
        if not self._segments[tenant]:
            del self._segments[tenant]


class Match:
    """The longest suffix of a growing text in the history of a tenant."""

    def __init__(self, history: History, tenant: str) -> None:
        self._history, self._tenant = history, tenant
        self._read = 0  # tokens of the text
        self._states: dict[SuffixAutomaton, tuple[int, int]] = {}  # state and matched tokens

    def longest(self, text: Sequence[int]) -> tuple[SuffixAutomaton, int, int] | None:
        """The segment, the state in it and the number of matched tokens; None if the last token does not occur."""
        segments = self._history.of(self._tenant)
        known = {segment: self._states[segment] for segment in segments if segment in self._states}
        for segment in segments:
            start = max(self._read if segment in known else 0, len(text) - CONTEXT)
            state, matched = known.get(segment, (0, 0)) if start == self._read else (0, 0)
            for token in text[start:]:
                state, matched = segment.follow(state, matched, token)
            known[segment] = state, matched
        self._read, self._states = len(text), known
        best = max(reversed(segments), key=lambda segment: known[segment][1], default=None)
        if best is None or not known[best][1]:
            return None
        self._history.use(best)
        return best, *known[best]
