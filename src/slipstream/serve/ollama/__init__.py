"""Ollama's API over the same engines."""
