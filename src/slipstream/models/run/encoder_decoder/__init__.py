"""Encoder-decoder models: a condition per request, encoded once, and a decoder that attends to it."""
