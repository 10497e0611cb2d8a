"""Hugging Face transformers as an engine: `generate` as everybody calls it, plain and assisted."""
