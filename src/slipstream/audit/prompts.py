"""The prompts of the audits of loaded models and engines."""

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that adds two numbers, and then call it twice.",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
)
SHORT = "The cat sat. The dog sat. The cat"  # continued many times; ngram drafts " sat", which is often accepted
