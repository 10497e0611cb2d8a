"""Parses the command-line options that constrain or bias tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.models.text.codec import TextCodec


def read_constraint(json_schema: str | None, regex: str | None, grammar: str | None) -> dict[str, Any]:
    """The constraint as an option of `GenerationOptions`. At most one of the three may be given."""
    options = {"--json-schema": json_schema, "--regex": regex, "--grammar": grammar}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given; one grammar constrains a text")
    if json_schema is not None:
        return {"json_schema": _schema(json_schema)}
    if regex is not None:
        return {"regex": regex}
    if grammar is not None:
        return {"grammar": grammar if "::=" in grammar else _contents(grammar, "--grammar")}
    return {}


def _schema(source: str) -> Any:
    """A schema as JSON text or in a file; `true` is any JSON."""
    inline = source.strip() == "true" or source.lstrip().startswith("{")
    try:
        return json.loads(source if inline else _contents(source, "--json-schema"))
    except json.JSONDecodeError as error:
        where = "--json-schema" if inline else source
        raise ValueError(f"{where} is not JSON ({error}); give a schema, or true for any JSON") from error


def _contents(path: str, option: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ValueError(f"{option} is neither a grammar nor a readable file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error


def read_biases(arguments: Iterable[str] | None) -> list[tuple[str, float]]:
    """`TOKEN=VALUE` pairs. The token is everything before the last equals sign."""
    pairs = []
    for argument in arguments or ():
        token, equals, value = argument.rpartition("=")
        try:
            pairs.append((token, float(value)))
        except ValueError:
            equals = ""
        if not (token and equals):
            raise ValueError(f"logit bias {argument!r} is not of the form TOKEN=VALUE, such as 1234=-5 or ' the'=2.5")
    return pairs


def token_biases(pairs: Sequence[tuple[str, float]], text: TextCodec) -> dict[int, float]:
    """Biases by token id. A token is written as its id, or as text that is exactly one token."""
    biases: dict[int, float] = {}
    for token, value in pairs:
        biases[int(token) if token.isdecimal() else _single_token(token, text)] = value
    return biases


def _single_token(token: str, text: TextCodec) -> int:
    ids: list[int] = text.tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(f"the logit bias {token!r} is {len(ids)} tokens ({ids}); give a token id or text of one token")
    return ids[0]
