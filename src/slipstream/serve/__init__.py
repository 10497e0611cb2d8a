"""The server: OpenAI's HTTP API over any engine."""
