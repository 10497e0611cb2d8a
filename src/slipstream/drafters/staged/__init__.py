"""Staged drafting: a drafter drafts for a draft model, which drafts for the target (arXiv 2308.04623)."""
