"""vLLM as an engine, in a process of its own: with this interpreter, or with that of another environment."""
