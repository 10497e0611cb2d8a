"""Speculation inside existing transformers code: only the call of `generate` changes."""

from transformers import AutoModelForCausalLM, AutoTokenizer

import slipstream as ss
from slipstream.models.sources.catalog import full_folder, resolve

folder = full_folder(resolve("smollm2-135m").path)  # any folder or id of a causal language model does
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
texts = ["The capital of France is", "Repeat: red green blue, red green blue, red green"]
inputs = tokenizer(texts, return_tensors="pt", padding=True)
output = model.generate(**inputs, max_new_tokens=16, custom_generate=ss.hf.generate, drafter="ngram")
print(*tokenizer.batch_decode(output, skip_special_tokens=True), sep="\n---\n")
