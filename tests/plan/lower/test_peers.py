"""Plans for other engines: their configuration, or an error that names the node they cannot express."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from slipstream.engines.emit import peer_configuration
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.nodes import DraftNode, PlanError
from slipstream.plan.lower.native import lower_native
from slipstream.plan.lower.peers import lower_peer
from slipstream.plan.passes.edits import replaced

NGRAM = build_plan("m", "ngram", depth=3)
OVERLAP = replaced(NGRAM, NGRAM.one(DraftNode), replace(NGRAM.one(DraftNode), overlap=True))


def test_native_overlap():
    settings = lower_native(OVERLAP)
    assert (settings.drafter, settings.options) == ("overlapped", {"drafter": "ngram"})


def test_vllm():
    plan = build_plan("some/model", "ngram", depth=4, options={"longest": 5, "shortest": 2}, tensor_parallel=2)
    config = peer_configuration(plan, "vllm")
    assert config["configuration"]["tensor_parallel_size"] == 2
    speculative = config["configuration"]["speculative_config"]
    assert speculative["num_speculative_tokens"] == 4
    assert (speculative["prompt_lookup_max"], speculative["prompt_lookup_min"]) == (5, 2)
    words = shlex.split(config["command"])
    assert words[:3] == ["vllm", "serve", "some/model"]
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "coupled" in config["notes"][0]


def test_llamacpp_and_transformers(tmp_path):
    plan = build_plan("m.gguf", "ngram", depth=6, options={"longest": 4})
    words = shlex.split(peer_configuration(plan, "llamacpp")["command"])
    lengths = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "6"]
    assert words == ["llama-server", "--model", "m.gguf", "--spec-type", "ngram-simple", *lengths]
    small = build_plan("m", "draft_model", depth=5, options={"model": "small"})
    assert (
        peer_configuration(small, "llamacpp")["command"] == "llama-server --model m --model-draft small --draft-max 5"
    )
    config = peer_configuration(small, "transformers")
    assert config["configuration"]["generate"] == {"assistant_model": "small", "num_assistant_tokens": 5}
    assert peer_configuration(build_plan("m"), "vllm")["configuration"]["speculative_config"] is None


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (build_plan("m", "ngram"), "draft %d: vllm drafts the same number of tokens in every cycle"),
        (build_plan("m", "ngram", depth=3, guard=True), "guard %g: vllm drafts the same number"),
        (build_plan("m", "eagle", depth=3, shape=8), "draft %d: vllm drafts chains"),
        (build_plan("m", "medusa", depth=3), "drafter medusa: vllm has no drafter medusa; it has ngram"),
        (
            build_plan("m", "ngram", depth=3, verify="coupled"),
            "verify %v: vllm has no rule coupled; it has token, block",
        ),
        (
            build_plan("m", "draft_model", depth=3, options={"layers": "0-3"}),
            "vllm has no counterpart of the option layers",
        ),
        (OVERLAP, "draft %d: vllm does not draft while the target scores; native does"),
        (build_plan("m", "ngram", depth=3, invariant=True), "model target: vllm has no invariant mode"),
    ],
)
def test_what_vllm_cannot_express(plan, says):
    with pytest.raises(PlanError) as error:
        peer_configuration(plan, "vllm")
    assert says in str(error.value)


def test_parallel_engines():
    plan = build_plan("m", tensor_parallel=2)
    with pytest.raises(PlanError, match="native runs in one process, so it has no tensor_parallel"):
        lower_native(plan)
    with pytest.raises(PlanError, match="llamacpp has no tensor_parallel; vllm has"):
        lower_peer(plan, "llamacpp", ("none",), ())
