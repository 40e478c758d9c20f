"""Text for benchmarks where there is none: a made-up language with Zipf's law."""

from collections.abc import Iterator

import numpy as np


def made_up_texts(seed: int = 0) -> Iterator[str]:
    """Endless documents of a made-up language: 10 paragraphs each of five sentences, 5 KB."""
    rng = np.random.default_rng(seed)
    letters = [list("bcdfghjklmnprstvwz"), list("aeiou"), ["", "", "n", "r", "s", "t"]]
    parts = [rng.choice(part, (40_000, 4)) for part in letters]
    syllables = np.char.add(np.char.add(parts[0], parts[1]), parts[2])
    # Frequent words are short.
    words = [
        "".join(row[:count])
        for row, count in zip(syllables, np.linspace(1.2, 4.9, 40_000).astype(int), strict=True)
    ]
    share = 1 / (np.arange(len(words)) + 2.7)  # Mandelbrot's form of Zipf's law
    bounds = np.cumsum(share) / share.sum()
    while True:
        lengths = rng.integers(6, 31, (10, 5))
        drawn = iter(np.searchsorted(bounds, rng.random(lengths.sum())))
        yield "\n".join(
            " ".join(
                ", ".join(
                    " ".join(words[next(drawn)] for _ in range(part))
                    for part in (count - count // 2, count // 2)
                ).capitalize()
                + "."
                for count in paragraph
            )
            for paragraph in lengths
        )
