"""A toy recurrent scorer with a cache, in TensorFlow and NumPy, and reference searches."""

import numpy as np
import scipy.special
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, translate_ids
from macaron_tf.models import EncoderConfig, LanguageModel
from macaron_tf.text.sentencepiece import CONTROL, SentencePieceVocabulary, train_pieces

BOS, EOS = 2, 3
SIZE = 7  # PAD, UNK, BOS, EOS and three words
REAL_SIZE = 6  # the last word is vocabulary padding


class Toy:
    """A recurrent scorer: state' = tanh(state W + E[token] + source), logits = state' U.

    The logits depend on all tokens before a position, not only on the last token.
    """

    def __init__(self, seed: int = 0, size: int = SIZE, width: int = 8):
        rng = np.random.default_rng(seed)
        self.mix = rng.normal(size=(width, width)).astype(np.float32)
        self.embedding = rng.normal(size=(size, width)).astype(np.float32)
        self.output = 1.5 * rng.normal(size=(width, size)).astype(np.float32)
        self.width = width
        self.calls = 0

    def sources(self, batch: int, seed: int = 1) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=(batch, self.width)).astype(np.float32)

    def empty_cache(self, batch, beams: int) -> dict:
        return {"state": tf.zeros([batch, beams, self.width]), "steps": tf.zeros([batch, beams, 1])}

    def decode_step(self, tokens, index, context, cache):
        self.calls += 1
        state = cache["state"] @ self.mix + tf.gather(self.embedding, tokens)
        state = tf.tanh(state + context["rows"][:, None, :])
        return state @ self.output, {"state": state, "steps": cache["steps"] + 1}

    def log_probs(self, source: np.ndarray, ids) -> np.ndarray:
        """Returns the log-probabilities after each prefix of BOS + `ids`: `(len(ids) + 1, V)`."""
        state, rows = np.zeros(self.width), []
        for token in [BOS, *ids]:
            state = np.tanh(state @ self.mix + self.embedding[token] + source)
            rows.append(scipy.special.log_softmax(state @ self.output))
        return np.array(rows)

    def log_prob(self, source: np.ndarray, ids) -> float:
        """Returns the log-probability of `ids`, EOS included."""
        rows = self.log_probs(source, ids[:-1])
        return float(sum(row[token] for row, token in zip(rows, ids, strict=True)))

    def beam_search(self, source: np.ndarray, limit: int, penalty, beam_size: int) -> list[tuple]:
        """Returns all finished outputs, best first, of a beam search that never stops early.

        If `beam_size` is at least the number of possible prefixes, the search is exhaustive.
        """
        live, ended = [(0.0, ())], []
        for length in range(1, limit + 1):
            following = []
            for log_prob, ids in live:
                row = self.log_probs(source, ids)[-1]
                words = [i for i in range(REAL_SIZE) if i not in (0, BOS)]
                following += [(log_prob + row[i], (*ids, i)) for i in words]
            following.sort(reverse=True)
            considered = following if length == limit else following[:beam_size]
            ended += [(p / penalty(length), ids) for p, ids in considered if ids[-1] == EOS]
            live = [(p, ids) for p, ids in following if ids[-1] != EOS][:beam_size]
        return [ids for _, ids in sorted(ended, reverse=True)]


def greedy(
    next_logits, start: list[int], most: int, barred: np.ndarray, ends=(EOS,), least: int = 0
) -> tuple[list, float]:
    """Returns the greedy continuation of `start` and its log-probability.

    Args:
        next_logits: function from a list of ids to the logits `(V,)` of the next token.
        start: ids of the prompt.
        most: maximum number of new tokens; an id in `ends` ends the continuation earlier.
        barred: `(V,)` bool, True for suppressed ids.
        ends: ids that end the continuation.
        least: minimum number of new tokens before an end.
    """
    new, log_prob = [], 0.0
    while len(new) < most and not {*ends} & {*new}:
        logits = next_logits([*start, *new])
        early = np.isin(np.arange(len(logits)), ends) & (len(new) < least)
        new.append(int(np.where(barred | early, -np.inf, logits).argmax()))
        log_prob += logits[new[-1]] - scipy.special.logsumexp(logits)
    return new, log_prob


def shaken(model, scale: float = 0.3, seed: int = 1):
    """Builds a model, and adds noise with standard deviation `scale` to its weights.

    Without the noise, almost equal logits would hide errors.
    """
    if not model.built:
        model.build()
    rng = np.random.default_rng(seed)
    model.set_weights([w + rng.normal(0, scale, w.shape) for w in model.get_weights()])
    return model


def language_model(vocab_size: int, **options) -> LanguageModel:
    options |= {"num_segments": 0, "max_length": 16, "causal": True}
    return shaken(LanguageModel(EncoderConfig(vocab_size, 16, 32, 2, 2, **options)))


def trimmed(row) -> tuple:
    """Returns the ids of one output without padding."""
    return tuple(int(i) for i in row if i != 0)


def check_greedy(ours, source, their_logits, length) -> None:
    """Checks that cached greedy decoding picks the same tokens as the argmax of uncached logits.

    PAD and BOS are suppressed, except a BOS that is EOS. At the length limit, our search must end
    with EOS, while the reference stops without EOS.

    Args:
        ours: model whose greedy decoding is checked.
        source: source ids.
        their_logits: function from source ids and target ids to the uncached logits `(B, T, V)`.
        length: maximum number of target tokens.
    """
    config = BeamSearchConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=length)
    found = translate_ids(ours, tf.constant(source), config)["ids"].numpy()[:, 0]
    special = ours.config.special
    taken = np.full((len(source), 1), special.begin)
    for _ in range(length - 1):
        scores = their_logits(source, taken)[:, -1]
        scores[:, [*{special.pad, special.begin} - {special.end}]] = -np.inf
        taken = np.concatenate([taken, scores.argmax(-1)[:, None]], axis=1)
    for our_row, their_row in zip(found, taken[:, 1:], strict=True):
        count = np.count_nonzero(our_row != special.pad)
        assert our_row[count - 1] == special.end
        shared = min(count, length - 1)
        np.testing.assert_array_equal(our_row[:shared], their_row[:shared])
        assert count == length or their_row[shared - 1] == special.end


TEXT = "the cat sat on the mat .\nthe dog sat on the log .\n\na cat and a dog sat ."
SPACED = [*TEXT.replace(".", ". Paris!").splitlines() * 4, "a  b", "Paris Paris"]


def llama_2() -> SentencePieceVocabulary:
    """Returns a vocabulary that adds a space to a text and keeps all others, as Llama 2's does."""
    special = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": [*CONTROL]}
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    proto = train_pieces(SPACED, 60, model_type="bpe", **options, **special)
    return SentencePieceVocabulary(proto, verbatim=True)
