"""The `audit` command: of tables, of a model, and of an engine from outside."""
