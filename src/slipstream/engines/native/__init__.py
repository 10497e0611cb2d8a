"""The native engine: any Hugging Face model, rows that advance at different rates, everything exact."""
