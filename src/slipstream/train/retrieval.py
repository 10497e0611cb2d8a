"""`slipstream train retrieval`: indexes a corpus of text files for the drafter `retrieval`. Nothing is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipstream.drafters.retrieval.corpus_index import CorpusIndex
from slipstream.drafters.retrieval.drafter import save_index
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.text.codec import fingerprint

MAX_TOKENS = 1 << 30


def index_corpus(model: str, corpus: Sequence[Path], folder: Path, trust_remote_code: bool = False) -> CorpusIndex:
    """Index text files with a model's tokenizer into `folder`. Every file is a document."""
    if not corpus:
        raise ValueError("retrieval needs a corpus; give text files with --corpus FILE")
    texts = [_read(path) for path in corpus]
    codec = load_text(resolve(model, trust_remote_code=trust_remote_code))
    documents = [codec.tokenizer.encode(text, add_special_tokens=False, verbose=False) for text in texts]
    tokens = sum(map(len, documents))
    if not tokens:
        raise ValueError("the corpus has no text; give files with text in them")
    if tokens > MAX_TOKENS:
        raise ValueError(f"the corpus has {tokens} tokens; an index holds {MAX_TOKENS}, so split it")
    vocab = 1 + max(max(codec.tokenizer.get_vocab().values()), *(max(document, default=0) for document in documents))
    index = CorpusIndex.build(documents, vocab)
    about = {"tokenizer": fingerprint(codec.tokenizer), "documents": len(documents), "model": model}
    save_index(folder, index, vocab, about)
    return index


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the corpus {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the corpus {path} is not UTF-8 text (byte {error.start})") from error
