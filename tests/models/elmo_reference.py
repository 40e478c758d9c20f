"""ELMo in NumPy, position by position, from the equations; float64."""

import numpy as np
from scipy.special import expit as sigmoid

from tests.harness import weights_of


def word_vector(w: dict, prefix: str, characters, filters, num_highways) -> np.ndarray:
    """Kim et al. 2016: of each filter the greatest value over a word's places, then highways."""
    x = w[f"{prefix}table"][characters]  # (C, E)
    found = []
    for width, _ in filters:
        kernel = w[f"{prefix}width_{width}/kernel"]  # (width, E, filters)
        bias = w[f"{prefix}width_{width}/bias"]
        values = [
            np.einsum("we,wef->f", x[place : place + width], kernel) + bias
            for place in range(len(x) - width + 1)
        ]
        found.append(np.maximum(np.max(values, axis=0), 0))
    x = np.concatenate(found)
    for number in range(num_highways):
        name = f"{prefix}highway_{number}"
        transform, carry = np.split(x @ w[f"{name}/inner/kernel"] + w[f"{name}/inner/bias"], 2)
        carry = sigmoid(carry + w[f"{name}/carry_bias"])
        x = carry * x + (1 - carry) * np.maximum(transform, 0)
    return x @ w[f"{prefix}projection/kernel"] + w[f"{prefix}projection/bias"]


def lstm(w: dict, prefix: str, xs: np.ndarray, clip) -> np.ndarray:
    """Sak et al. 2014 without peepholes; cells and outputs clipped. `(L, D) -> (L, P)`."""
    cell = {name.split("/")[-1]: w[name] for name in w if name.startswith(f"{prefix}loop")}
    recurrent, projection = cell["recurrent_kernel"], cell["projection"]
    h, c, hs = np.zeros(projection.shape[1]), np.zeros(projection.shape[0]), []
    limit = np.inf if clip is None else clip
    for x in xs:
        z = x @ w[f"{prefix}inner/kernel"] + w[f"{prefix}inner/bias"] + h @ recurrent
        i, f, g, o = np.split(z, 4)
        c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g), -limit, limit)
        h = np.clip((sigmoid(o) * np.tanh(c)) @ projection, -limit, limit)
        hs.append(h)
    return np.array(hs)


def layers(model, characters: np.ndarray) -> np.ndarray:
    """All layers `(L, 1 + layers, 2 P)` of one sentence `(L, C)` without padding."""
    w, config = weights_of(model), model.config
    xs = np.array(
        [word_vector(w, "words/", c, config.filters, config.num_highways) for c in characters]
    )
    ways = {"forwards": [xs], "backwards": [xs]}
    for name, found in ways.items():
        for number in range(config.num_layers):
            given = found[-1] if name == "forwards" else found[-1][::-1]
            out = lstm(w, f"{name}/lstm_{number}/", given, config.clip)
            out = out if name == "forwards" else out[::-1]
            found.append(out if number == 0 else out + found[-1])
    pairs = zip(ways["forwards"], ways["backwards"], strict=True)
    return np.stack([np.concatenate(pair, axis=-1) for pair in pairs], axis=1)
