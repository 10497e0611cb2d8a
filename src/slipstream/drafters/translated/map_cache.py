"""Token maps on disk. A map is written under the hashes of both tokenizers, completely or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from slipstream.drafters.files.folder import write_atomically
from slipstream.models.sources.store import home
from slipstream.models.text.codec import TextCodec, fingerprint
from slipstream.models.text.token_map import TokenMap

LAYOUT = 1  # changes with the way in which tokens are compared
PLACES = 10**6  # the share is stored in millionths


def token_map(target: TextCodec, draft: TextCodec) -> TokenMap:
    """The tokens that two vocabularies have in common: from the disk, or compared now and stored."""
    path = home().parent / "token_maps" / f"{_hash(target)}-{_hash(draft)}.npy"
    stored = _read(path)
    if stored is not None:
        return stored
    compared = TokenMap.of(target, draft)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda partial: _write(partial, compared))
    except OSError:
        pass  # a cache that cannot be written saves no time
    return compared


def _hash(codec: TextCodec) -> str:
    special = ",".join(str(i) for i in codec.token_ids() if codec.is_special(i))
    return hashlib.sha256(f"{LAYOUT} {fingerprint(codec.tokenizer)} {special}".encode()).hexdigest()[:24]


def _write(path: Path, tokens: TokenMap) -> None:
    share = np.array([[round(tokens.share * PLACES)], [len(tokens.target)]])
    with open(path, "wb") as file:
        np.save(file, np.concatenate([share, np.stack([tokens.target, tokens.draft])], 1))


def _read(path: Path) -> TokenMap | None:
    """None if there is no map, or a damaged one."""
    try:
        table = np.load(path, allow_pickle=False)
        (share, count), pairs = table[:, 0].tolist(), table[:, 1:]
    except (OSError, ValueError, IndexError, EOFError):
        return None
    if pairs.shape != (2, count) or table.dtype != np.int64:
        return None
    return TokenMap(pairs[0].copy(), pairs[1].copy(), share / PLACES)
