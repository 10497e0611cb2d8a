"""Weights in few bits, and the linear layers that read them."""
