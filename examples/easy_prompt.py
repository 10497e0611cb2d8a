"""The easy prompt: a text whose continuation anyone can guess, so that nearly every drafted token is accepted.

    python examples/easy_prompt.py [MODEL [DRAFT_MODEL]]

With the weights in the hub's cache, `python examples/easy_prompt.py gpt2-large gpt2` is the classic pair.
"""

from __future__ import annotations

import sys

import slipstream as ss

PROMPT = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z A B C D E F"


def main(model: str = "smollm2-135m", draft: str = "ngram") -> None:
    with ss.Engine(model, drafter=draft, depth=6) as engine:
        (done,) = engine.generate(PROMPT, ss.Sampling(temperature=0), max_tokens=48, raw=True)
    print(PROMPT + done.text)
    print(f"{len(done.token_ids)} tokens in {done.stats.cycles} passes of {model}: tau {done.tau:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
