"""Speculation inside existing transformers code, in one line:

    model.generate(**inputs, custom_generate=ss.hf.generate, drafter="ngram")

The result has the type, the shape and the distribution of plain `generate`, for batches of any size with padding on
either side. Every row advances by the accepted part of its own draft. The model is left unchanged.

Every field of a `GenerationConfig` is supported, or refused by name. Logits processors are called position by position,
one row at a time, with the tokens that plain `generate` would pass, padding included. A processor that keeps state
between calls cannot be exact; the known ones are refused. Stopping criteria are called after every token, row by row,
and tokens after a stop are dropped. With `do_sample` the seed comes from torch's generator unless one is given, so
`torch.manual_seed` repeats a text.

Models without a KV cache that can be rolled back (state-space models) and encoder-decoder models are refused.

Differences from plain `generate`:
- A row that is padded on the right continues its text, not its padding.
- A row that ended is padded also where no end token is configured. Its later scores and logits are zeros.
- `past_key_values` of the returned output is None, because the cache is not kept.
- Top-p keeps or drops tokens of equal score together.
"""

from slipstream.hf.call import generate

__all__ = ["generate"]
