"""A grammar small enough to enumerate: a finite automaton over token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from slipstream.core.types import Constraint

State = Mapping[int, int]  # token -> next state


class Automaton(Constraint):
    def __init__(self, states: Sequence[State], vocab: int) -> None:
        self.states, self.vocab, self.at = states, vocab, 0

    def allowed(self, path):
        at = self.at
        for token in path:
            if token not in self.states[at]:
                return None
            at = self.states[at][token]
        mask = torch.zeros(self.vocab, dtype=torch.bool)
        mask[list(self.states[at])] = True
        return mask

    def advance(self, tokens):
        for token in tokens:
            self.at = self.states[self.at][token]


def automaton(states: Sequence[State], vocab: int = 4) -> Callable[[], Automaton]:
    return lambda: Automaton(states, vocab)


# what may follow depends on the state, not on the last token alone
STATES: tuple[State, ...] = ({1: 1, 2: 2}, {0: 1, 1: 2, 2: 0}, {0: 0, 2: 3}, {0: 3, 1: 0})
