"""Forms with files, as clients of OpenAI's API send audio."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser

from slipstream.serve.errors import ApiError

BOUNDARY = re.compile(r'multipart/form-data;.*boundary="?([^";]+)"?', re.IGNORECASE)


@dataclass
class Form:
    """The fields of a form and its files."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # name of the file, content


def read_form(content_type: str, body: bytes) -> Form:
    """The parts of a body of multipart/form-data. ApiError where it is none."""
    match = BOUNDARY.match(content_type)
    if match is None:
        raise ApiError(400, "the request is no form; send the audio as multipart/form-data with a field file")
    form = Form()
    for part in body.split(b"--" + match[1].encode())[1:-1]:
        head, blank, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = BytesHeaderParser().parsebytes(head + b"\r\n\r\n")
        name = headers.get_param("name", header="content-disposition")
        if not blank or not isinstance(name, str):
            raise ApiError(400, "a part of the form has no name")
        content, file = content.removesuffix(b"\r\n"), headers.get_filename()
        if file is not None:
            form.files[name] = file, content
        else:
            form.fields[name] = content.decode("utf-8", "replace")
    return form
