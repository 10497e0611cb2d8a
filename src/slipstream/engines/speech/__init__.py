"""Transcription of audio of any length, on an engine with a speech model."""
