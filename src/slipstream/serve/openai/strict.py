"""The base of all requests: nothing unknown is accepted."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.serve.errors import UnknownParameter

Text = Annotated[str, Field(max_length=1 << 24)]


class Strict(BaseModel):
    """Unknown parameters are refused by name; nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            legal = _legal(cls)
            for name in values:
                if name not in legal:
                    raise UnknownParameter(str(name), list(legal))
        return values


@cache
def _legal(kind: type[Strict]) -> dict[str, None]:
    """The parameters of a request in their order."""
    return dict.fromkeys(field.alias or name for name, field in kind.model_fields.items())


class RequestBody(Strict):
    """A whole request. Its texts are valid Unicode, so they can be written anywhere."""

    @model_validator(mode="before")
    @classmethod
    def _unicode(cls, values: Any) -> Any:
        if not _is_unicode(values):
            raise ValueError("a text of the request is not valid Unicode (it holds half of a surrogate pair)")
        return values


def _is_unicode(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, dict):
        return all(_is_unicode(key) and _is_unicode(inner) for key, inner in value.items())
    return not isinstance(value, list) or all(map(_is_unicode, value))
