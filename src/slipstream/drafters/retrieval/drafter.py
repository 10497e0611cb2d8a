"""The drafter `retrieval`: looks up the end of the text in a corpus that `slipstream train retrieval` indexed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.files.folder import CONFIG, KIND, write_config
from slipstream.drafters.per_row import PerRow, RowDrafter
from slipstream.drafters.retrieval.corpus_index import SORTED, CorpusIndex, common_path
from slipstream.models.sources.folder import read_json
from slipstream.models.text.codec import fingerprint

NAME = "retrieval"


@dataclass(frozen=True)
class RetrievalOptions:
    """The options of `retrieval`."""

    model: str | None = None  # the folder that `slipstream train retrieval` made


class RetrievalRow(RowDrafter):
    """Lookups for one row. It has no state of its own."""

    def __init__(self, index: CorpusIndex) -> None:
        self._index = index

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        return common_path(self._index.continuations(tokens[-SORTED:], depth))

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        continuations = self._index.continuations(tokens[-SORTED:], depth)
        others = dict.fromkeys(map(tuple, continuations))
        return [common_path(continuations), *map(list, list(others)[:count])]

    def rewind(self, length: int) -> bool:
        return True


class Retrieval(PerRow):
    """Drafts all rows from one corpus."""

    options_type = RetrievalOptions

    def __init__(self, vocab: int, index: CorpusIndex) -> None:
        super().__init__(vocab)
        self.index = index

    @classmethod
    def build(cls, target: TargetModel, options: RetrievalOptions) -> Retrieval:
        if options.model is None:
            raise ValueError(
                "retrieval needs a corpus; index one with slipstream train retrieval --corpus FILE --out FOLDER, "
                "and give -d FOLDER"
            )
        return cls(target.vocab, open_index(Path(options.model), target))

    def new(self, row: Row) -> RowDrafter:
        return RetrievalRow(self.index)


def save_index(folder: Path, index: CorpusIndex, vocab: int, about: dict[str, Any]) -> None:
    """Write the folder that `-d FOLDER` loads. The configuration is written last."""
    index.save(folder)
    write_config(folder, {KIND: NAME, "tokens": index.size, "vocab": vocab, **about})


def open_index(folder: Path, target: TargetModel) -> CorpusIndex:
    """Open the index in a folder. ValueError if it was made with another tokenizer."""
    config = read_json(folder / CONFIG)
    if config.get(KIND) != NAME:
        raise ValueError(f"{folder} holds no retrieval index; slipstream train retrieval makes one")
    if config.get("tokenizer") != fingerprint(target.text.tokenizer):
        raise ValueError(f"the corpus in {folder} was indexed with another tokenizer; index it for this model")
    return CorpusIndex.open(folder, config["tokens"], config["vocab"])
