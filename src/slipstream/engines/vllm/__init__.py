"""vLLM as an engine, in a separate process: with this interpreter, or with that of another environment."""
