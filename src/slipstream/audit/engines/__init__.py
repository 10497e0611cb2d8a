"""The audit of any engine from outside: its samples and logprobs against the target computed here."""
