"""Which prefixes of texts are kept, and on which pages: a radix tree with least-recently-used eviction.

Keys and values at a place depend only on the tokens up to it, so texts with a common prefix may share them. Kept texts
form a tree of pages. A page holds up to `PAGE` tokens that follow its parent page, so a common prefix is held once, and
a look-up costs one hash per page. Two texts may diverge inside a page; they still share the part before.

Pages are ordered by their last use. Using a page uses its ancestors too, so each page is younger than its descendants.
The first page in that order is therefore always a leaf, and that one is evicted when a page is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

PAGE = 16  # tokens


@dataclass(eq=False)
class PrefixPage:
    """Tokens that follow those of the parent page (`above`). Only a full page has children (`below`)."""

    index: int
    above: PrefixPage | None = None
    tokens: tuple[int, ...] = ()
    below: dict[tuple[int, ...], PrefixPage] = field(default_factory=dict)


class PrefixIndex:
    """A tree of at most `capacity` pages, numbered from 0. `prefix_store` holds their contents."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = 0  # held on all pages
        self._root = PrefixPage(-1)
        self._order: OrderedDict[PrefixPage, None] = OrderedDict()  # least recently used first
        self._free: list[int] = []  # evicted, to be used again

    def __len__(self) -> int:
        """Pages in use."""
        return len(self._order)

    @property
    def high(self) -> int:
        """One more than the highest page number ever used: the number of pages that need memory."""
        return len(self._order) + len(self._free)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The places of the longest kept prefix of a text, one per token: page number times `PAGE` plus the offset."""
        path = self._walk(tokens)
        size = len(path) * PAGE
        rest = tuple(tokens[size : size + PAGE])
        last = max(
            (path[-1] if path else self._root).below.values(), key=lambda page: common(page.tokens, rest), default=None
        )
        if last is not None and (part := common(last.tokens, rest)):
            path, size = [*path, last], size + part
        self._use(path)
        return [path[i // PAGE].index * PAGE + i % PAGE for i in range(size)]

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Keep a text, or as much of it as `capacity` allows. The least recently used pages are evicted.

        Returns places for the tokens that were not held so far, which are the last ones.
        """
        tokens = tokens[: self.capacity * PAGE]
        path = self._walk(tokens)
        page, size = path[-1] if path else self._root, len(path) * PAGE
        partial = self._partial_page(page, tuple(tokens[size : size + PAGE]))
        held = size + len(partial.tokens) if partial else size
        self._use([*path, partial] if partial else path)
        if partial and held < len(tokens):
            self._write(partial, tokens[size : size + PAGE])
        new = [partial] if partial else []
        starts = range(size + PAGE * len(new), len(tokens), PAGE)
        for start, index in zip(starts, self._indices(len(starts)), strict=True):
            new.append(PrefixPage(index, new[-1] if new else page))
            self._write(new[-1], tokens[start : start + PAGE])
        self._use([*path, *new])
        return [new[(i - size) // PAGE].index * PAGE + i % PAGE for i in range(held, len(tokens))]

    def _walk(self, tokens: Sequence[int]) -> list[PrefixPage]:
        """The full pages that a text begins with."""
        page, path = self._root, list[PrefixPage]()
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            next_page = page.below.get(tuple(tokens[start : start + PAGE]))
            if next_page is None:
                break
            path.append(page := next_page)
        return path

    def _partial_page(self, above: PrefixPage, rest: tuple[int, ...]) -> PrefixPage | None:
        """The child page that begins with `rest`, or that `rest` begins with. There is at most one of the latter, since
        no page is a prefix of a sibling."""
        pages = (page for page in above.below.values() if common(page.tokens, rest) in (len(page.tokens), len(rest)))
        return next(pages, None) if rest else None

    def _use(self, path: Sequence[PrefixPage]) -> None:
        for page in reversed(path):
            self._order[page] = None
            self._order.move_to_end(page)

    def _indices(self, count: int) -> list[int]:
        """Numbers for new pages. The text being added was used last and fits the capacity, so eviction never hits
        it."""
        while len(self) + count > self.capacity:
            self._evict()
        fresh = range(self.high, self.high + count)
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        return [*again, *fresh[: count - len(again)]]

    def _evict(self) -> None:
        page, _ = self._order.popitem(last=False)
        assert page.above is not None, "the root is not a page"
        assert not page.below, "a page with children was evicted"
        del page.above.below[page.tokens]
        self.tokens -= len(page.tokens)
        self._free.append(page.index)

    def _write(self, page: PrefixPage, tokens: Sequence[int]) -> None:
        assert page.above is not None, "the root holds nothing"
        page.above.below.pop(page.tokens, None)
        self.tokens += len(tokens) - len(page.tokens)
        page.tokens = tuple(tokens)
        page.above.below[page.tokens] = page

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is either free or used, once, and the tree is consistent."""
        used = [page.index for page in self._order]
        assert sorted([*used, *self._free]) == list(range(self.high)), f"pages {used} used, {self._free} free"
        assert self.high <= self.capacity, f"{self.high} pages of {self.capacity}"
        assert self.tokens == sum(len(page.tokens) for page in self._order), "tokens are miscounted"
        rank = {page: n for n, page in enumerate(self._order)}
        reached, unvisited = 0, [self._root]
        while unvisited:
            page = unvisited.pop()
            assert not page.below or page is self._root or len(page.tokens) == PAGE, "a page not full is followed"
            for tokens, below in page.below.items():
                assert (tokens, page) == (below.tokens, below.above), "a page is not where its tokens say"
                assert page is self._root or rank[below] < rank[page], "a page is younger than its parent"
                reached += 1
            unvisited += page.below.values()
        assert reached == len(self), f"{reached} pages can be found of {len(self)}"


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are the same. Bisects, so that slices are compared and not tokens."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def leaders(texts: Sequence[list[int]], held: Sequence[int], least: int, worth: int) -> dict[int, int]:
    """Which of several texts to read ahead, and how far, so that the others can copy the common prefix.

    In sorted order, each text shares its longest prefix with a neighbour. Neighbours that share `least` tokens which
    neither holds are a group. Its leader is the text that shares most, if that saves the others `worth` tokens.
    """
    order = sorted(range(len(texts)), key=lambda n: texts[n])
    pairs = list(pairwise(order))
    shared = [common(texts[a], texts[b]) for a, b in pairs]
    joined = [size - max(held[a], held[b]) >= least for size, (a, b) in zip(shared, pairs, strict=True)]
    leader_sizes: dict[int, int] = {}
    start = 0
    for end, more in enumerate([*joined, False]):
        if more:
            continue
        if end > start:
            best = max(range(start, end), key=shared.__getitem__)
            others = [n for n in range(start, end + 1) if n != best]
            spared = [min(shared[min(n, best) : max(n, best)]) - held[order[n]] for n in others]
            if sum(max(0, tokens) for tokens in spared) >= worth:
                leader_sizes[order[best]] = shared[best]
        start = end + 1
    return leader_sizes
