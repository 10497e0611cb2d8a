"""Grammars: JSON schemas, regular expressions and EBNF as masks over the vocabulary, through xgrammar.

Each row has a matcher. For a drafted path, the matcher is rolled back to the common prefix with the last path and then
advanced. The mask of each path is computed once per cycle, for drafter and verifier. Special tokens are not text, so
they never match. The model's end tokens are allowed exactly when the grammar is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy
import torch

from slipstream.core.array_types import Bool, Tensor
from slipstream.core.types import Constraint
from slipstream.models.text.codec import TextCodec

# Source positions in xgrammar's error messages.
WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?")


def compiled(constraint: tuple[str, Any], text: TextCodec, vocab: int) -> Callable[[], Constraint]:
    """A function that makes the constraint of a row from `GenerationOptions.constraint`. Grammars are cached."""
    name, source = constraint
    compiler, words = _compiler(text, vocab)
    compilers = {
        "grammar": compiler.compile_grammar,
        "json_schema": lambda schema: compiler.compile_json_schema(_schema_text(schema)),
        "regex": compiler.compile_regex,
    }
    try:
        grammar = compilers[name](source)
    except UnicodeEncodeError as error:
        raise ValueError(f"the {name} is not valid Unicode text (it holds half of a surrogate pair)") from error
    except RuntimeError as error:
        why = " ".join(WHERE.sub("", str(error)).split())
        legal = "; a grammar is EBNF, such as 'root ::= [a-z]+'; for any JSON pass json_schema=True"
        raise ValueError(f"the {name} is malformed: {why}{legal if name == 'grammar' else ''}") from error
    return lambda: Grammar(grammar, words, vocab)


def _schema_text(schema: Mapping[str, Any] | bool) -> str:
    try:
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else {})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"json_schema cannot be written as JSON: {error}") from error


@lru_cache(maxsize=8)
def _compiler(text: TextCodec, vocab: int) -> tuple[Any, Bool[Tensor, " vocab"]]:
    """The grammar compiler of a tokenizer, which caches its results, and which tokens are text or end tokens."""
    try:
        import xgrammar
    except ImportError as error:
        raise ValueError("grammars need xgrammar; pip install slipstream-lm[grammar]") from error
    ends = sorted(token for token in text.ends if token < vocab)
    info = xgrammar.TokenizerInfo.from_huggingface(text.huggingface, vocab_size=vocab, stop_token_ids=ends)
    words = torch.ones(vocab, dtype=torch.bool)
    words[[token for token in text.skipped - text.ends if token < vocab]] = False
    return xgrammar.GrammarCompiler(info), words


class Grammar(Constraint):
    """The grammar state of one row."""

    def __init__(self, grammar: Any, text: Bool[Tensor, " vocab"], vocab: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._bits = xgrammar.allocate_token_bitmask(1, vocab)
        self._text, self._vocab = text, vocab
        self._path: list[int] = []  # tokens that the matcher has accepted after the committed ones
        self._masks: dict[tuple[int, ...], Bool[Tensor, " vocab"] | None] = {}

    def allowed(self, path: Sequence[int]) -> Bool[Tensor, " vocab"] | None:
        """None also after an end token, where the grammar is finished."""
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._mask() if self._move(path) and not self._matcher.is_terminated() else None
        return self._masks[key]

    def advance(self, tokens: Sequence[int]) -> None:
        moved = self._move(tokens)
        assert moved, f"the grammar does not allow {list(tokens)}, which was committed"
        self._path, self._masks = [], {}

    def _move(self, path: Sequence[int]) -> bool:
        """Move the matcher from its last path to this one. False if the grammar does not allow a token of the path."""
        shared = 0
        while shared < min(len(path), len(self._path)) and path[shared] == self._path[shared]:
            shared += 1
        if back := len(self._path) - shared:
            self._matcher.rollback(back)
            del self._path[shared:]
        for token in path[shared:]:
            if self._matcher.is_terminated() or not self._text[token] or not self._matcher.accept_token(token):
                return False
            self._path.append(token)
        return True

    def _mask(self) -> Bool[Tensor, " vocab"]:
        self._matcher.fill_next_token_bitmask(self._bits)
        bits = numpy.unpackbits(self._bits.numpy().view(numpy.uint8), count=self._vocab, bitorder="little")
        return torch.from_numpy(bits.view(numpy.bool_)) & self._text
