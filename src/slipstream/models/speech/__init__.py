"""Audio and its transcription by Whisper: samples, features, prompts and the rules of timestamps."""
