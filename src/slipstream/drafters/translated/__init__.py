"""Draft models with another tokenizer than the target's (token-level intersection, arXiv 2502.05202)."""
