"""The `chat` command: conversation, slash commands and line input."""
