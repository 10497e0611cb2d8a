"""lm-eval as its users run it, with task files of its own, against a live server on the default model.

Its packages are many, so it is installed apart: `python -m venv DIR`, then
`DIR/bin/pip install 'lm-eval[api]' transformers`, then SLIPSTREAM_LM_EVAL=DIR/bin/lm_eval.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from live import command, tool

from slipstream.models.sources.catalog import full_folder, resolve

pytestmark = [pytest.mark.model]
MODEL = "smollm2-135m"
QUESTIONS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin", " a banana"], "answer": 0},
    {"question": "Two plus two is", "choices": [" four", " seven", " blue and green"], "answer": 0},
    {"question": "The opposite of hot is", "choices": [" up", " cold", " a very long word indeed"], "answer": 1},
]
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WRITE = """
task: write
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "Answer with one word. {{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match, ignore_case: true}]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    tool("lm_eval", "SLIPSTREAM_LM_EVAL")
    with command("--dtype", "float32", "-d", "ngram") as address:
        yield address


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, text in (("choice", CHOICE), ("write", WRITE)):
        (folder / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
    return folder


def evaluate(kind: str, address: str, tasks: Path, task: str, out: Path, *words: str) -> tuple[dict, list[dict]]:
    """The results of a task, and its samples."""
    path = "chat/completions" if "chat" in kind else "completions"
    how = f"model={MODEL},base_url={address}/v1/{path},num_concurrent=2,max_retries=1,tokenizer={resolve(MODEL).path}"
    line = [tool("lm_eval", "SLIPSTREAM_LM_EVAL"), "run", "--model", kind, "--model_args", how, "--tasks", task]
    line += ["--include_path", str(tasks), "--output_path", str(out), "--log_samples", *words]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(out / "cache"), "OPENAI_API_KEY": "none"}
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (results,), (samples,) = out.rglob("results_*.json"), out.rglob("samples_*.jsonl")
    return json.loads(results.read_text())["results"][task], list(map(json.loads, samples.read_text().splitlines()))


def test_multiple_choice_is_what_transformers_computes(server, tasks, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    results, samples = evaluate("local-completions", server, tasks, "choice", tmp_path)
    folder = full_folder(resolve(MODEL).path)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        AutoTokenizer.from_pretrained(folder),
    )
    right = 0
    for sample, question in zip(sorted(samples, key=lambda sample: sample["doc_id"]), QUESTIONS, strict=True):
        own = []
        for choice in question["choices"]:
            context, whole = (tokenizer.encode(text) for text in (question["question"], question["question"] + choice))
            with torch.inference_mode():
                law = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            tail = range(len(context), len(whole))
            own.append(
                (sum(float(law[i - 1, whole[i]]) for i in tail), all(law[i - 1].argmax() == whole[i] for i in tail))
            )
        given = [response[0] for response in sample["resps"]]
        assert [float(value) for value, _ in given] == pytest.approx([value for value, _ in own], abs=1e-4)
        assert [str(greedy) == "True" for _, greedy in given] == [greedy for _, greedy in own]
        right += max(range(3), key=lambda i: own[i][0]) == question["answer"]
    assert results["acc,none"] == pytest.approx(right / len(QUESTIONS))


@pytest.mark.parametrize(
    ("kind", "words"), [("local-completions", ()), ("local-chat-completions", ("--apply_chat_template",))]
)
def test_texts_are_generated(server, tasks, tmp_path, kind, words):
    results, samples = evaluate(kind, server, tasks, "write", tmp_path, *words)
    assert len(samples) == len(QUESTIONS)
    texts = [sample["resps"][0][0] for sample in samples]
    assert all(isinstance(text, str) and "\n" not in text for text in texts)
    assert any(text.strip() for text in texts)
    assert 0 <= results["exact_match,none"] <= 1
