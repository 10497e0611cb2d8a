"""GGUF files: reading, converting, and loading their quantised weights."""
