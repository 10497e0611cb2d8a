"""Whisper checkpoints in other formats, converted to folders of safetensors."""
