"""Text and token ids: prompts, chat templates, end tokens, and whether two tokenizers are the same.

Exactly one BOS begins a prompt where the model was trained with one: chat templates often write it themselves, and
some converted tokenizers omit it. Special tokens and end tokens are not text and are skipped when decoding.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tokenizers.decoders import ByteLevel
from tokenizers.decoders import Sequence as Chain

from slipstream.models.text.detokenizer import ByteDetokenizer, Detokenizer, Spellings, spelt_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# the ends of a chat turn, by the families that use them; a model's own configuration often names only one of them
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|endoftext|>")
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")  # a time in the audio, as speech models write it
PADDING = re.compile(r"\[PAD\d*\]|<\|?(?:extra|reserved|dummy|unused|pad)_?\d+\|?>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # the space in SentencePiece vocabularies
LONG_TOKEN = 16  # characters, more than tokens of any text have on average
PIECE = 1 << 14  # characters of a long text that are encoded at a time to count its tokens
CUT_TOKENS = 64  # tokens by which a piece of a text may differ from the same part of the whole

Messages = Sequence[Mapping[str, Any]]


class TextCodec:
    """A model's tokenizer with its chat template. `ends` are the tokens that end a text."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Iterable[int | Sequence[int] | None] = (),
        full: Callable[[], PreTrainedTokenizerBase] | None = None,
    ) -> None:
        """`full` loads transformers' tokenizer where `tokenizer` is a `LightTokenizer`."""
        self.tokenizer, self._full = tokenizer, full
        self.instruct = bool(getattr(tokenizer, "chat_template", None))
        self.ends = _ends(tokenizer, ends)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {i for i, token in added.items() if token.special or TIMESTAMP.fullmatch(token.content)}
        self.skipped = self.ends | special | set(tokenizer.all_special_ids)
        self._bos = tokenizer.bos_token_id if _wants_bos(tokenizer) else None
        self._decode = _decoder(tokenizer)
        self._bytes, self._spellings = _of_bytes(tokenizer), Spellings(self._spelt)

    @property
    def huggingface(self) -> PreTrainedTokenizerBase:
        """transformers' own tokenizer, for other libraries."""
        return self._full() if self._full else self.tokenizer

    def prepare(self) -> None:
        """Compile the chat template. Otherwise the first prompt waits for that, and for its libraries."""
        with suppress(ValueError):  # a template that refuses a text without a system message, or has another rule
            self.encode("a")

    def encode(
        self,
        prompt: str | Messages,
        raw: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        begin: str = "",
        context: int | None = None,
    ) -> list[int]:
        """Ids of a prompt: through the chat template where there is one and `raw` is off, else unchanged. `tools` are
        for the chat template (`tool_template`), and `begin` is how the answer begins. A text that is far too long for
        `context` tokens is refused by its beginning."""
        return self._encoded(self._prompt_text(prompt, raw, tools, begin, context))

    def encode_all(
        self, prompts: Sequence[str | Messages], raw: bool = False, context: int | None = None
    ) -> list[list[int]]:
        """The ids of several prompts (`encode`). They are tokenized side by side."""
        texts = [self._prompt_text(prompt, raw, context=context) for prompt in prompts]
        if len(texts) < 2:
            return list(map(self._encoded, texts))
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False, return_attention_mask=False)
        return [self._with_bos(list(ids)) for ids in encoded["input_ids"]]

    def encode_output(self, output: str, name: str, context: int) -> list[int]:
        """Ids of a text that the model might write: without BOS. `name` says what it is where it is refused."""
        _check_unicode(output, name)
        if len(output) > LONG_TOKEN * context:
            self._check_length(output, context, name)
        ids: list[int] = self.tokenizer.encode(output, add_special_tokens=False, verbose=False)
        if len(ids) > context:
            raise ValueError(f"the {name} has {len(ids)} tokens; the model's context holds {context}")
        return ids

    def _prompt_text(
        self,
        prompt: str | Messages,
        raw: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        begin: str = "",
        context: int | None = None,
    ) -> str:
        """What is tokenized of a prompt."""
        if not isinstance(prompt, str) and (raw or not self.instruct):
            why = "raw is on" if raw else "this model has no chat template"
            raise ValueError(f"a list of messages needs a chat template, and {why}; give the prompt as one string")
        text = prompt if isinstance(prompt, str) and (raw or not self.instruct) else self._chat(prompt, tools) + begin
        _check_unicode(text, "prompt")
        if context is not None and len(text) > LONG_TOKEN * context:
            self._check_length(text, context)
        return text

    def _encoded(self, text: str) -> list[int]:
        return self._with_bos(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    @cached_property
    def tool_template(self) -> str | None:
        """The chat template, where it writes tools into the prompt; None where it does not."""
        template = str(getattr(self.tokenizer, "chat_template", None) or "")
        if "tools" not in template:
            return None
        function = {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            written = self._chat("a", [{"type": "function", "function": function}])
        except ValueError:
            return None
        return template if "probe_of_tools" in written else None

    def _check_length(self, text: str, context: int, name: str = "prompt") -> None:
        """Refuse a text once its beginning has too many tokens. Tokenizers take hundreds of bytes per token, and the
        thread that calls them keeps that memory, so the beginning is read in pieces."""
        tokens = 0
        for start in range(0, LONG_TOKEN * context, PIECE):
            piece = text[start : min(start + PIECE, LONG_TOKEN * context)]
            tokens += len(self.tokenizer.encode(piece, add_special_tokens=False, verbose=False)) - CUT_TOKENS
            if tokens > context:
                raise ValueError(f"the {name} has more than {context} tokens; the model's context holds {context}")

    def _chat(self, prompt: str | Messages, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # templates raise any error about roles that they do not support
            why = " ".join(str(error).split())
            raise ValueError(f"the chat template refuses these messages: {why}") from error
        return str(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special and end tokens."""
        kept = [i for i in ids if i not in self.skipped]
        return str(self._decode(kept)) if kept else ""

    def token(self, i: int) -> str:
        """One token as the vocabulary writes it."""
        return str(self.tokenizer.convert_ids_to_tokens(i))

    def stream(self) -> Detokenizer:
        """Decode ids as they come."""
        if self._bytes:
            return ByteDetokenizer(self._spellings.__getitem__)
        return Detokenizer(self.decode, self._is_text, self.is_byte)

    def token_ids(self) -> list[int]:
        """The ids of all tokens without padding tokens, in ascending order."""
        return sorted(_tokens_by_id(self.tokenizer))

    def is_special(self, i: int) -> bool:
        """Whether a token is no part of a text."""
        return i in self.skipped

    def spelling(self, i: int) -> bytes:
        """The bytes that a token adds to a text. A special token is spelt as it is written."""
        token = self.tokenizer.convert_ids_to_tokens(i)
        if token is None:  # an id beyond the vocabulary
            return b""
        if self.is_special(i):
            return str(token).encode()
        if self._bytes:
            return spelt_bytes(str(token))
        if BYTE.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return str(token).replace(SPACE, " ").encode(errors="surrogatepass")

    def encode_bytes(self, text: bytes, begin: bool) -> list[int] | None:
        """The tokens of bytes that may be no valid text: bytes that form no character become byte tokens.

        `begin`: BOS comes first, as in `encode`. None if the vocabulary has no token for such a byte."""
        ids: list[int] = []
        while text:
            try:
                valid, broken, rest = text.decode(), b"", b""
            except UnicodeDecodeError as error:
                valid, broken, rest = text[: error.start].decode(), text[error.start : error.end], text[error.end :]
            ids += self.tokenizer.encode(valid, add_special_tokens=False, verbose=False) if valid else []
            byte_ids = [self._byte_tokens.get(byte) for byte in broken]
            if None in byte_ids:
                return None
            ids += [i for i in byte_ids if i is not None]
            text = rest
        return self._with_bos(ids) if begin else ids

    @cached_property
    def _byte_tokens(self) -> dict[int, int]:
        """The token of each single byte."""
        single = {i: self.spelling(i) for i in reversed(self.token_ids()) if not self.is_special(i)}
        return {spelling[0]: i for i, spelling in single.items() if len(spelling) == 1}

    def _spelt(self, i: int) -> bytes:
        return spelt_bytes(self.token(i)) if self._is_text(i) else b""

    def _is_text(self, i: int) -> bool:
        """False for special tokens, and for ids beyond the vocabulary, which models with a padded output can emit."""
        return i not in self.skipped and self.tokenizer.convert_ids_to_tokens(i) is not None

    def is_byte(self, i: int) -> bool:
        """Whether a token is written as a byte, such as `<0x0A>`."""
        return BYTE.fullmatch(self.token(i)) is not None


def _check_unicode(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {name} is not valid Unicode text (it holds half of a surrogate pair)") from error


def _ends(tokenizer: PreTrainedTokenizerBase, configured: Iterable[int | Sequence[int] | None]) -> frozenset[int]:
    ends = {tokenizer.eos_token_id}
    for value in configured:
        ends |= {value} if isinstance(value, int) or value is None else set(value)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    id_of = tokenizer.get_vocab().get if backend is None else backend.token_to_id  # the latter makes no dictionary
    ends |= {id_of(token) for token in TURN_ENDS}
    return frozenset(i for i in ends if i is not None)


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], Any]:
    """The function that decodes ids. For fast tokenizers it skips transformers' wrapper, which takes three quarters of
    the time."""
    if hasattr(tokenizer, "_decode"):  # one of transformers' own, which is imported then
        from transformers import PreTrainedTokenizerFast

        kind, base = type(tokenizer), PreTrainedTokenizerFast
        if (kind.decode, getattr(kind, "_decode", None)) == (base.decode, base._decode):
            return partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=False)
    return partial(tokenizer.decode, clean_up_tokenization_spaces=False)


def _of_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether each token is a fixed sequence of bytes.

    Converted tokenizers may have decoding steps for other kinds of tokens. These steps have no effect if the vocabulary
    has no such tokens."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if not isinstance(decoder, Chain):
        return isinstance(decoder, ByteLevel)
    *before, last = json.loads(decoder.__getstate__())["decoders"]
    kinds = {step["type"] for step in before}
    if last["type"] != "ByteLevel" or not kinds <= {"ByteFallback", "Fuse", "Replace"}:
        return False
    spelt = [step["pattern"].get("String", "") for step in before if step["type"] == "Replace"]  # "" is in every token
    return not any(BYTE.fullmatch(token) or any(mark in token for mark in spelt) for token in tokenizer.get_vocab())


def _wants_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether encoding adds BOS. Encodes a text, since a stored tokenizer ignores its settings."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("a")[:1] == [bos]


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of the vocabulary without padding tokens. A draft model must have the fingerprint of its target."""
    lines = (f"{i} {token}\n" for i, token in sorted(_tokens_by_id(tokenizer).items()))
    return hashlib.sha256("".join(lines).encode(errors="surrogatepass")).hexdigest()


def same_tokenizer(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> str | None:
    """None if both tokenizers have the same token for every id, except padding; else a sentence with a difference."""
    vocab_a, vocab_b = _tokens_by_id(a), _tokens_by_id(b)
    different = [i for i in vocab_a.keys() | vocab_b.keys() if vocab_a.get(i) != vocab_b.get(i)]
    if not different:
        return None
    first = min(different)
    token_a, token_b = (repr(vocab[first]) if first in vocab else "nothing" for vocab in (vocab_a, vocab_b))
    sizes = f"{len(vocab_a)} and {len(vocab_b)} tokens"
    return f"the tokenizers differ ({sizes}): id {first} is {token_a} in one and {token_b} in the other"


def _tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {i: token for token, i in tokenizer.get_vocab().items() if not PADDING.fullmatch(token)}
