"""The base of all requests: nothing unknown is accepted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.serve.errors import unknown_parameter

Text = Annotated[str, Field(max_length=1 << 24)]


class Strict(BaseModel):
    """Unknown parameters are refused by name; nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            legal = [field.alias or name for name, field in cls.model_fields.items()]
            for name in values:
                if name not in legal:
                    raise ValueError(unknown_parameter(str(name), legal))
        return values
