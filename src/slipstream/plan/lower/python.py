"""Lowers a plan to one readable Python file: its decoding cycle with every constant in place.

The file imports the core, the models and the drafters, and the policy if the depth is adaptive. It emits the same
tokens as the engine: with a fixed depth under every rule, with an adaptive depth under `greedy` and `coupled`. A file
of a lossy rule says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slipstream.core.rules import rules
from slipstream.core.tree import Shape
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.ir.text import text_of
from slipstream.plan.lower.native import NativeSettings, lower_native

HEAD = '''"""The decoding cycle of this plan, written by `slipstream plan lower --emit python`:

{plan}
Run it: python FILE "PROMPT" --max-tokens 64 --temperature 0 --json
"""

from __future__ import annotations

import argparse
import json
{imports}

{constants}

def rule(sampling: Sampling) -> Verifier:
    """The verification rule. {greedy}"""
{rule}


def generate(prompt: str, sampling: Sampling, max_tokens: int, raw: bool = False) -> tuple[Row, str]:
    """Draft, score, verify and commit until the text ends."""
    target = load_target({load})
    model, text = target.model, target.text
{build}    ends = frozenset(token for token in text.ends if token < model.vocab)
{request}    verifier = rule(sampling)
    model.open([row])
{open}    while row.finish_reason is None:
        noise = {noise}
{cycle}        advance([row], draft, verdict, model.context)
{close}    model.close([row])
    return row, text.decode(row.output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode a prompt with the plan {name}.")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--raw", action="store_true", help="use the prompt without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    row, text = generate(args.prompt, Sampling(args.temperature, seed=args.seed), args.max_tokens, args.raw)
    print(text)
    if args.json:
        print(json.dumps({{"text": text, "token_ids": row.output, "finish_reason": row.finish_reason}}))


if __name__ == "__main__":
    main()
'''

REQUEST = """    row = Row(Request(text.encode(prompt, raw=raw), sampling, max_tokens, ends))
"""
# a lossy rule sees laws at temperature 1
LOSSY_REQUEST = """    warm = sampling if sampling.temperature else replace(sampling, temperature=1.0)
    row = Row(Request(text.encode(prompt, raw=raw), warm, max_tokens, ends))
"""
ROOM = "row.room(model.context) - 1  # verification adds one token"
PLAIN = """        draft = empty_draft(1, model.vocab)
        scores = model.score([row], draft)
        verdict = verifier.verify(draft, target_law([row], draft, scores), noise)
        model.commit([row], verdict)
"""
FIXED = """        room = {room}
        budget = Budget(min(DEPTH, room){stop}{shape}, siblings=sibling_mode(verifier, drafter))
        draft = drafter.propose([row], [budget], noise)
        scores = model.score([row], draft)
        draft = draft.to(scores.logits.device)
        verdict = verifier.verify(draft, target_law([row], draft, scores), noise)
        model.commit([row], verdict)
        drafter.observe([row], verdict, scores)
"""
ADAPTIVE = """        siblings = sibling_mode(verifier, drafter)
        budgets = within_limits(policy.budget([row]), [row], model.context, siblings, verifier)
        started = time.perf_counter()
        draft = drafter.propose([row], budgets, noise)
        drafted = time.perf_counter()
        scores = model.score([row], draft)
        draft = draft.to(scores.logits.device)
        verdict = verifier.verify(draft, target_law([row], draft, scores), noise)
        model.commit([row], verdict)
        drafter.observe([row], verdict, scores)
        policy.observe([row], draft, verdict)
        policy.price(drafted - started, time.perf_counter() - drafted, len(scores.logits))
"""


def emit_python(plan: Plan) -> str:
    """The source of the plan's cycle."""
    settings = lower_native(plan)
    adaptive, plain, lossy = settings.depth is None, settings.plain, _lossy_rule(settings)
    return HEAD.format(
        plan=text_of(plan).replace("\\", "\\\\").replace('"""', '\\"\\"\\"'),
        name=plan.name,
        imports=_imports(settings),
        constants=_constants(settings),
        greedy="It is lossy." if lossy else "At temperature 0 every rule is greedy.",
        rule=_rule(settings),
        request=LOSSY_REQUEST if lossy else REQUEST,
        noise=f"{'rule_noise(verifier, ' if lossy else ''}CounterNoise([row], [verifier.shared]){')' if lossy else ''}",
        load=", ".join([repr(settings.model), *(f"{name}={value!r}" for name, value in _loading(settings))]),
        build="" if plain else f"    drafter = build_drafter({settings.drafter!r}, target, OPTIONS)\n",
        open=_open(settings),
        close="" if plain else "    drafter.close([row])\n",
        cycle=ADAPTIVE if adaptive else PLAIN if plain else _fixed(settings),
    )


def _loading(settings: NativeSettings) -> list[tuple[str, object]]:
    return [(name, value) for name, value in settings.loading.items() if value not in (None, "auto", False)]


def _lossy_rule(settings: NativeSettings) -> Any:
    """The plan's rule with its options, if it is lossy; otherwise None."""
    return None if settings.rule is None or rules.get(settings.rule).lossless else rules.make(settings.rule)


def _fixed(settings: NativeSettings) -> str:
    """The cycle with a fixed depth."""
    lossy = _lossy_rule(settings)
    whole = lossy is not None and lossy.needs_draft
    room = "row.room(model.context)  # the rule adds no token" if whole else ROOM
    stop = f", stop_below={lossy.stop_below}" if lossy is not None and lossy.stop_below else ""
    return FIXED.format(shape=_shape(settings.shape), room=room, stop=stop)


def _rule_names(settings: NativeSettings) -> list[str]:
    named = [settings.rule] if settings.rule else [settings.auto.seeded, settings.auto.other]
    return list(dict.fromkeys(named if _lossy_rule(settings) else ["greedy", *named]))


def _class(name: str) -> str:
    return rules.get(name).__name__


def _rule(settings: NativeSettings) -> str:
    if (lossy := _lossy_rule(settings)) is not None:
        return f"    return {lossy!r} if sampling.temperature else {replace(lossy, argmax=True)!r}"
    lines = ["    if sampling.temperature == 0:", f"        return {_class('greedy')}()"]
    if settings.rule is not None:
        lines.append(f"    return {_class(settings.rule)}()")
    else:
        seeded, other = _class(settings.auto.seeded), _class(settings.auto.other)
        lines.append(f"    return {seeded}() if sampling.seed is not None else {other}()")
    return "\n".join(lines)


def _open(settings: NativeSettings) -> str:
    lines = [] if settings.plain else ["    drafter.open([row])\n"]
    if settings.depth is None:
        policy = f"policies.get({settings.policy or 'adaptive'!r}).build({settings.max_depth or ''})"
        lines += [f"    policy = {policy}\n", "    policy.open([row], model, drafter, verifier)\n"]
    return "".join(lines)


def _shape(shape: Shape | None) -> str:
    return "" if shape is None else ", shape=SHAPE"


def _constants(settings: NativeSettings) -> str:
    lines = [] if settings.plain else [f"OPTIONS = {dict(settings.options)!r}"]
    lines += [f"DEPTH = {settings.depth}  # drafted tokens per cycle"] if settings.depth else []
    lines += [f"SHAPE = {settings.shape!r}"] if settings.shape is not None else []
    return "".join(f"{line}\n" for line in lines)


def _imports(settings: NativeSettings) -> str:
    adaptive, plain = settings.depth is None, settings.plain
    loop = ["advance", "target_law", *(["within_limits"] if adaptive else [])]
    loop += ["rule_noise"] if _lossy_rule(settings) else []
    interfaces = ["Verifier", *([] if plain else ["sibling_mode"])]
    types = [*([] if adaptive or plain else ["Budget"]), "Request", "Row"]
    classes = {(rules.get(name).__module__, rules.get(name).__name__) for name in _rule_names(settings)}
    found = {
        ("slipstream.core.noise", "CounterNoise"),
        ("slipstream.core.sampling", "Sampling"),
        ("slipstream.models.load_target", "load_target"),
        *classes,
        *(("slipstream.core.loop", name) for name in loop),
        *(("slipstream.core.interfaces", name) for name in interfaces),
        *(("slipstream.core.types", name) for name in types),
        ("slipstream.drafters.none", "empty_draft") if plain else ("slipstream.drafters.build", "build_drafter"),
        *([("slipstream.plan", "policies")] if adaptive else []),
        *([("slipstream.core.tree", "Shape")] if settings.shape is not None else []),
    }
    modules = sorted({module for module, _ in found})
    lines = [f"from {m} import {', '.join(sorted((n for at, n in found if at == m), key=str.lower))}" for m in modules]
    standard = ["import time"] if adaptive else []
    standard += ["from dataclasses import replace"] if _lossy_rule(settings) else []
    return "\n".join([*standard, "", *lines])
