"""Speculation inside existing transformers code, in one line:

    model.generate(**inputs, custom_generate=ss.hf.generate, drafter="ngram")

The answer has the type, the shape and the law plain `generate` gives, for batches of any size with padding on either
side; every row advances by what was accepted of its own draft. The model is left as it was.

Everything in a `GenerationConfig` is honoured or refused by name. Processors of logits are called place by place, with
one row at a time as plain `generate` shows it, padding included; one that remembers earlier calls cannot be exact, and
those known to are refused. Stopping criteria are asked after every token, row by row, and what follows a stop is
dropped. With `do_sample` the seed comes from torch's generator unless one is given, so `torch.manual_seed` repeats it.

Different from plain `generate`, on purpose:
- a row that is padded on the right continues its text, not its padding;
- a row that ended is padded also where no end token is configured, and its later scores and logits are zeros;
- `past_key_values` of the returned record is None, since the cache is ours and is given back;
- tokens whose scores are equal are kept or dropped together by top-p.
"""

from slipstream.hf.call import generate

__all__ = ["generate"]
