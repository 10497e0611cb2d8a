"""`slipstream audit --engine`: any engine through its public interface."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from slipstream.cli.audit.check_runner import conclude, print_layers, run_checks
from slipstream.cli.options import engine_options
from slipstream.cli.output.show import console

SAMPLES = 512
RULES = {"native": "block"}  # the rule of an engine where none is named; peers have their own


def audit_peer(
    engine: str,
    model: str,
    drafter: str,
    verify: str | None,
    depth: int | None,
    options: Mapping[str, str],
    loading: Mapping[str, Any],
    temperature: float,
    samples: int | None,
    as_json: bool,
) -> None:
    """Open the engine with and without speculation, and the target in float32; run the checks and print them."""
    from slipstream.audit.engines.engine import ENGINE_LAYERS, EngineAudit
    from slipstream.audit.engines.engine_subject import EngineSubject
    from slipstream.audit.prompts import PROMPTS, SHORT
    from slipstream.engines import open_engine
    from slipstream.engines.native.build import build_target

    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; sampling is audited above 0, and temperature 0 along with it")
    if samples is not None and samples < 200:
        raise ValueError(f"samples is {samples}; at least 200 are needed to see anything")
    if drafter == "none":
        raise ValueError("the drafter is none, so there is no speculation to audit; name a drafter")
    verify = verify or RULES.get(engine)
    out = console()
    with ExitStack() as opened:
        fast = opened.enter_context(open_engine(engine, model, drafter, verify, depth or 3, options, **loading))
        plain = opened.enter_context(
            open_engine(engine, model, "none", verify, options=engine_options(options), **loading)
        )
        target = build_target(model, "float32", **loading)
        ends = frozenset(token for token in target.text.ends if token < target.model.vocab)
        prompts = [target.text.encode(prompt) for prompt in PROMPTS]
        short = target.text.encode(SHORT, raw=True)
        subject = EngineSubject(fast, plain, target.model, ends, short, prompts, temperature)
        named = {"engine": fast.version, "model": fast.label, "drafter": drafter, "depth": depth or 3}
        named["rule"] = verify or "its own"
        about = f"{fast.version}: {fast.label}, drafted by {drafter}, depth {depth or 3}, rule {named['rule']}"
        out.print(f"{about}, temperature {temperature}", style="dim")
        audit = EngineAudit(subject, samples or SAMPLES)
        checks = run_checks(out, audit.plan(), audit.unit_seconds())
    print_layers(out, ENGINE_LAYERS, checks)
    failed = sum(not check.passed for check in checks)
    report: dict[str, Any] = {
        **named,
        "options": dict(options),
        "temperature": temperature,
        "samples": samples or SAMPLES,
        "checks": [asdict(check) for check in checks],
        "figures": subject.figures,
        "layers": ENGINE_LAYERS,
    }
    verdict = f"DEVIATES: {failed} of {len(checks)} checks failed" if failed else "no deviation found"
    conclude(not failed, verdict, report, as_json)
