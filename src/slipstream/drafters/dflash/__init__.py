"""The DFlash drafter: a small non-causal stack that drafts a block of tokens in one pass."""
