"""A tokenizer without transformers: the methods that `TextCodec` needs, by the tokenizers library only.

transformers' tokenizers wrap the same library, but take seconds to import. Some features exist only in the wrapper:
messages with more than a role and a text, and templates that keep state. For these, `full` loads the wrapper.
`tokenizer_parts` compares both on a few texts and chats before a `LightTokenizer` is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tokenizers import Tokenizer

WRAPPER_ONLY = re.compile(
    r"\b(namespace|generation|dict)\b"
)  # template features that transformers handles in its own way
TEXTS = (
    "",
    " ",
    "Say hello",
    "  two  spaces,\ttabs\n\nand lines \r\n",
    "def f(x):\n    return x ** 2  # 12345 + 0.5e-3\n",
    "Ünïcödé, 日本語, العربية, \U0001f469\u200d\U0001f4bb and \ufffd",
    "<|im_start|>user\n<s></s><unk> [INST] <0x0A> <|endoftext|>",
)
CHATS = (
    [{"role": "user", "content": "Say hello"}],
    [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "1 + 1?"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": " c\n"}],
    [{"role": "assistant", "content": "out of order"}],
)


class LightTokenizer:
    """The tokenizer of a compiled package. `facts`: from `tokenizer_parts`. Methods are named as in transformers."""

    def __init__(self, source: str, facts: Mapping[str, Any], full: Callable[[], Any]) -> None:
        self._backend, self._full = Tokenizer.from_str(source), full
        self._special: dict[str, Any] = facts["special"]
        self.chat_template: str | None = facts["template"]
        self.bos_token_id: int | None = facts["bos"]
        self.eos_token_id: int | None = facts["eos"]
        self.all_special_ids: list[int] = facts["special_ids"]
        self.added_tokens_decoder = self._backend.get_added_tokens_decoder()
        self._template: Any = None

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self._backend

    def encode(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def __call__(
        self,
        texts: list[str],
        add_special_tokens: bool = True,
        verbose: bool = True,
        return_attention_mask: bool = False,
    ) -> dict[str, list[list[int]]]:
        encoded = self._backend.encode_batch(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [text.ids for text in encoded]}

    def decode(self, ids: Sequence[int], clean_up_tokenization_spaces: bool = False) -> str:
        assert not clean_up_tokenization_spaces, "text is decoded as it is"
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def convert_ids_to_tokens(self, i: int) -> str | None:
        return self._backend.id_to_token(i)

    def get_vocab(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    def apply_chat_template(
        self, messages: Any, tools: Any = None, add_generation_prompt: bool = True, tokenize: bool = False
    ) -> Any:
        template = self.chat_template or ""
        if tools or tokenize or not _plain(messages) or WRAPPER_ONLY.search(template):
            return self._full().apply_chat_template(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=tokenize
            )
        if self._template is None:
            self._template = _compiled(template)
        return self._template.render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )


def _plain(messages: Any) -> bool:
    """Whether messages hold only roles and texts."""
    return bool(messages) and all(
        type(message) is dict
        and message.keys() <= {"role", "content"}
        and all(type(v) is str for v in message.values())
        for message in messages
    )


def _compiled(template: str) -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def tokenizer_parts(tokenizer: Any) -> tuple[str, dict[str, Any]] | None:
    """The source and the facts of a `LightTokenizer` that equals a tokenizer of transformers; None if none does."""
    backend, template = getattr(tokenizer, "backend_tokenizer", None), getattr(tokenizer, "chat_template", None)
    if backend is None or not (template is None or isinstance(template, str)):
        return None
    source = backend.to_str()
    facts = {
        "template": template,
        "special": dict(tokenizer.special_tokens_map),
        "special_ids": list(tokenizer.all_special_ids),
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
    }
    try:
        facts = json.loads(json.dumps(facts))
    except TypeError:
        return None
    return (source, facts) if _same(LightTokenizer(source, facts, lambda: tokenizer), tokenizer) else None


def _same(light: LightTokenizer, tokenizer: Any) -> bool:
    added = {i: token.special for i, token in tokenizer.added_tokens_decoder.items()}
    if {i: token.special for i, token in light.added_tokens_decoder.items()} != added:
        return False
    if light.get_vocab() != tokenizer.get_vocab():
        return False
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        if light.encode(text, add_special_tokens=False) != ids or light.encode(text) != tokenizer.encode(text):
            return False
        if light.decode(ids) != tokenizer.decode(ids, clean_up_tokenization_spaces=False):
            return False
    return not light.chat_template or all(_rendered(light, chat) == _rendered(tokenizer, chat) for chat in CHATS)


def _rendered(tokenizer: Any, chat: list[dict[str, str]]) -> tuple[str, str]:
    """("text", the rendered chat) or (the error's class, its message)."""
    try:
        return "text", tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates may raise any error; both must raise the same
        return type(error).__name__, str(error)
