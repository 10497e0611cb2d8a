"""A trained head of the drafter `early_exit`: one transformer block on the states of the target's first layers."""
