"""Hugging Face transformers as an engine, through `generate`: plain and assisted decoding."""
