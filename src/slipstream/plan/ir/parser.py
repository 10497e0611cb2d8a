"""Reads the text form of a plan (`ir/text.py`). Errors name line, column and the nearest legal name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn

from slipstream.plan.ir.lexer import Lexeme, PlanLine, lines
from slipstream.plan.ir.nodes import (
    OPERATIONS,
    VERSION,
    CommitNode,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    PlanError,
    PlanNode,
    Position,
    RouteNode,
    ScoreNode,
    StageNode,
    VerifyNode,
)
from slipstream.plan.ir.text import MAIN_OPTION
from slipstream.plan.ir.values import CONSTANTS, Call, Range, as_depth, as_rule

_WORDS = {kind.word: kind for kind in OPERATIONS}


def parse_plan(text: str, source: str = "plan") -> Plan:
    """The plan of a text. `source` is the file's name in errors."""
    comments, nodes = list[str](), list[PlanNode]()
    name: str | None = None
    version, heading = VERSION, tuple[str, ...]()
    for line in lines(text, source):
        if line.empty:
            comments += [] if line.comment is None else [line.comment]
            continue
        parser = _LineParser(line, source)
        if name is None:
            (name, version), heading = parser.header(), tuple(comments)
            comments.clear()
            continue
        nodes.append(parser.node(tuple(comments)))
        comments.clear()
    if name is None:
        raise PlanError("there is no plan; the first line is: plan NAME", Position(1, 1), source)
    return Plan(name, tuple(nodes), version, heading, tuple(comments))


def near(word: str, legal: Iterable[str]) -> str:
    """`; did you mean X?` if a legal name is like the word."""
    close = get_close_matches(word, list(legal), 1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


class _LineParser:
    """Reads one line: the header, a definition or an operation."""

    def __init__(self, line: PlanLine, source: str) -> None:
        self.line, self.source, self.at = line, source, 0
        self.keys: dict[str, Lexeme] = {}  # where each key=value begins

    @property
    def token(self) -> Lexeme:
        return self.line.tokens[self.at]

    def fail(self, message: str, token: Lexeme | None = None) -> NoReturn:
        raise PlanError(message, (token or self.token).position, self.source)

    def take(self, kind: str, wanted: str, text: str | None = None) -> Lexeme:
        token = self.token
        if token.kind != kind or (text is not None and token.text != text):
            self.fail(f"{token.shown} stands where {wanted} belongs")
        self.at += 1
        return token

    def skips(self, mark: str) -> bool:
        matches = self.token.kind == "mark" and self.token.text == mark
        self.at += matches
        return matches

    def header(self) -> tuple[str, int]:
        self.take("word", "the word plan", "plan")
        name = str(self.value())
        version = VERSION
        if self.token.kind == "word":
            self.take("word", "version=N", "version")
            self.take("mark", "=", "=")
            number = self.take("number", "a version")
            if not number.text.isdigit() or int(number.text) > VERSION:
                self.fail(f"the plan has version {number.text}; this slipstream reads versions up to {VERSION}", number)
            version = int(number.text)
        self.take("end", "the end of the line")
        return name, version

    def node(self, comments: tuple[str, ...]) -> PlanNode:
        extra: dict[str, Any] = {"position": self.token.position, "comments": comments}
        extra["remark"] = self.line.comment or ""
        if self.token.kind == "result":
            name = self.take("result", "a %result").text[1:]
            self.take("mark", "=", "=")
            return self.operation(name, extra)
        word = self.take("word", "a name, a %result or commit")
        if word.text == CommitNode.word and self.token.text != "=":
            verdict = self.result()
            self.take("end", "the end of the line")
            return CommitNode(verdict, **extra)
        if self.token.text != "=":
            self.fail(f"{word.text!r} begins no line; write NAME = …, %NAME = … or commit %NAME", word)
        self.take("mark", "=", "=")
        return self.definition(word.text, extra)

    def definition(self, name: str, extra: dict[str, Any]) -> PlanNode:
        kind = self.take("word", "model, stage or a drafter's name")
        call = self.call(kind)
        self.take("end", "the end of the line")
        if kind.text == StageNode.word:
            if call.named or not all(isinstance(part, str) for part in call.arguments):
                self.fail("stage takes names of drafters: NAME = stage(FIRST, SECOND)", kind)
            return StageNode(name, call.arguments, **extra)
        main = dict(zip((MAIN_OPTION,), call.arguments, strict=False))
        if len(call.arguments) > 1 or any(not isinstance(value, str) for value in main.values()):
            self.fail(f'{kind.text} takes one "string" and then key=value', kind)
        if kind.text != ModelNode.word:
            options: dict[str, Any] = {**main, **call.named}
            for key, value in options.items():
                if isinstance(value, Call | Range):
                    self.fail(f"the option {key} of {kind.text} is no word, number or string", self.keys[key])
            return DrafterNode(name, kind.text, options, **extra)
        if not main:
            self.fail('model takes a "string" first: a name, a Hugging Face id, a folder or a GGUF file', kind)
        return ModelNode(name, main[MAIN_OPTION], **self.checked(ModelNode, call.named), **extra)

    def operation(self, name: str, extra: dict[str, Any]) -> PlanNode:
        word = self.take("word", "an operation")
        kind = _WORDS.get(word.text)
        if kind is None or kind is CommitNode:
            legal = [key for key in _WORDS if key != CommitNode.word]
            self.fail(f"there is no operation {word.text!r}; one of {', '.join(legal)}{near(word.text, legal)}", word)
        operands: list[Any] = []
        if kind in (DraftNode, ScoreNode, RouteNode):
            operands.append(self.take("word", f"the name of a {'drafter' if kind is DraftNode else 'model'}").text)
        if kind is VerifyNode:
            rule = self.token
            operands.append(as_rule(self.value()))
            if operands[0] is None:
                self.fail("a rule is a name, or auto(seeded=NAME, else=NAME)", rule)
        if kind in (GuardNode, VerifyNode, RouteNode) or (kind is ScoreNode and self.token.kind == "result"):
            operands.append(self.result())
        named = self.checked(kind, self.named())
        self.take("end", "key=value or the end of the line")
        return kind(name, *operands, **named, **extra)  # type: ignore[call-arg,arg-type]

    def result(self) -> str:
        return self.take("result", "a %result").text[1:]

    def named(self) -> dict[str, Any]:
        """`key=value key=value`."""
        values: dict[str, Any] = {}
        while self.token.kind == "word":
            self.pair(values)
        return values

    def pair(self, values: dict[str, Any]) -> None:
        key = self.take("word", "a key")
        self.take("mark", "=", "=")
        if key.text in values:
            self.fail(f"{key.text} is given twice", key)
        self.keys[key.text] = key
        values[key.text] = self.value()

    def call(self, word: Lexeme) -> Call:
        """`(argument, key=value)` after a word."""
        self.take("mark", "(", "(")
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        while not self.skips(")"):
            following = self.line.tokens[self.at + 1] if self.token.kind == "word" else self.token
            if following.text == "=":
                self.pair(named)
            else:
                arguments.append(self.value())
            if self.token.text != ")":
                self.take("mark", ", or )", ",")
        return Call(word.text, tuple(arguments), named, word.position)

    def value(self) -> Any:
        token = self.token
        self.at += 1
        match token.kind:
            case "string":
                return token.string
            case "shape":
                return token.text
            case "range":
                low, high = token.text.split("..")
                return Range(int(low), int(high))
            case "number":
                return int(token.text) if token.text.lstrip("-").isdigit() else float(token.text)
            case "word" if self.token.text == "(":
                return self.call(token)
            case "word":
                return CONSTANTS.get(token.text, token.text)
        raise PlanError(f"{token.shown} stands where a value belongs", token.position, self.source)

    def checked(self, kind: type[PlanNode], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the types of the node's fields. Unknown and ill-typed ones are errors."""
        legal = [entry.name for entry in fields(kind) if "help" in entry.metadata]
        values: dict[str, Any] = {}
        for name, value in named.items():
            if name not in legal:
                takes = ", ".join(legal) or "no arguments"
                self.fail(f"{kind.word} has no {name!r}; it takes {takes}{near(name, legal)}", self.keys[name])
            values[name] = self.typed(kind, name, value)
        return values

    def typed(self, kind: type[PlanNode], name: str, value: Any) -> Any:
        word = self.keys[name]
        if name == "depth":
            depth = as_depth(value)
            return self.fail("depth is a number, or adaptive(0..8)", word) if depth is None else depth
        if name == "shape":
            return None if value is None else str(value)
        if name == "score":
            score = as_rule(value)
            return score if isinstance(score, str) else self.fail("a score is a name, or NAME(key=value)", word)
        declared = str(next(entry.type for entry in fields(kind) if entry.name == name))
        legal = {part.strip() for part in declared.split("|")}
        if type(value) is int and "float" in legal:
            return float(value)
        if type(value).__name__ not in legal and not (value is None and "None" in legal):
            self.fail(f"{name} of {kind.word} is {value!r}; it must be {declared.replace('None', 'none')}", word)
        return value
