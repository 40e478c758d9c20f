"""Extractive question answering: finds the best span of each question over its windows."""

import tensorflow as tf

from macaron_tf.data.tasks.questions import WindowPositions

_HIDDEN = -1e9  # logit of a position that no answer may contain
IMPOSSIBLE = -1e8  # below any score of a possible span


def best_spans(logits: tf.Tensor, max_answer: int) -> dict[str, tf.Tensor]:
    """Finds the best span of each window; a span's score is its start's logit plus its end's.

    Args:
        logits: `(M, 2, L)` float, of starts and ends, -1e9 where an answer is not allowed. Position
            0, [CLS], stands for "no answer".
        max_answer: longest span, in positions.

    Returns:
        All `(M,)`: int64 "start" and "end" (inclusive; of equal spans the first and shortest);
        float32 "score" (below `IMPOSSIBLE` if no span is possible), "null" (the score of no answer)
        and "log_total" (log sum exp of the scores of all spans).
    """
    logits = tf.cast(logits, tf.float32)
    starts, ends = logits[:, 0], logits[:, 1]  # (M, L)
    null = tf.reduce_sum(logits[:, :, :1], axis=[1, 2])  # (M,)
    hidden = tf.fill([tf.shape(starts)[0], 1], _HIDDEN)
    starts = tf.concat([hidden, starts[:, 1:]], axis=1)
    further = tf.pad(ends, [[0, 0], [0, max_answer]], constant_values=_HIDDEN)
    length = tf.shape(starts)[1]
    # A = max_answer: scores[:, d, i] is the score of the span from i to i + d.
    scores = tf.stack(
        [starts + further[:, d : d + length] for d in range(max_answer)], axis=1
    )  # (M, A, L)
    flat = tf.reshape(scores, (-1, max_answer * length))  # (M, A L)
    best = tf.argmax(flat, axis=1)  # (M,)
    wide = tf.cast(length, tf.int64)
    return {
        "start": best % wide,
        "end": best % wide + best // wide,
        "score": tf.reduce_max(flat, axis=1),
        "null": null,
        "log_total": tf.reduce_logsumexp(flat, axis=1),
    }


def best_answers(spans: dict[str, tf.Tensor], positions: WindowPositions) -> dict[str, tf.Tensor]:
    """Finds the best answer of each question over its windows, see `best_spans`.

    Returns:
        All `(N,)` for N questions: int64 "start" and "end", in characters of the context as in
        `context[start:end]`, both 0 if no span is possible; float32 "score", "null" (the least of
        the windows, as in BERT's released code) and "log_total".
    """
    question = positions.question
    score = tf.math.segment_max(spans["score"], question)  # (N,)
    windows = tf.range(tf.size(question, tf.int64), dtype=tf.int64)
    is_best = spans["score"] >= tf.gather(score, question)
    best = tf.math.segment_min(tf.where(is_best, windows, tf.int64.max), question)  # (N,)
    # A NaN score is never the best: keep the index in range.
    best = tf.minimum(best, tf.size(question, tf.int64) - 1)
    possible = score > IMPOSSIBLE
    shift = tf.gather(positions.first_piece - positions.boundary, best)  # (N,)

    def character(positions: tf.Tensor, pieces: tf.RaggedTensor) -> tf.Tensor:
        index = pieces.row_starts() + tf.gather(positions, best) + shift
        # One more value, so that an empty context has one to gather.
        values = tf.concat([pieces.values, [0]], axis=0)
        found = tf.gather(values, tf.where(possible, index, 0))
        return tf.cast(found, tf.int64) * tf.cast(possible, tf.int64)

    top = tf.math.segment_max(spans["log_total"], question)  # (N,)
    rest = tf.exp(spans["log_total"] - tf.gather(top, question))
    return {
        "start": character(spans["start"], positions.starts),
        "end": character(spans["end"], positions.ends),
        "score": score,
        "null": tf.math.segment_min(spans["null"], question),
        "log_total": top + tf.math.log(tf.math.segment_sum(rest, question)),
    }


def decided(answers: dict[str, tf.Tensor], threshold: float | None) -> dict[str, tf.Tensor]:
    """Decides whether each question has an answer.

    Args:
        answers: see `best_answers`.
        threshold: there is no answer if "null" exceeds "score" by more than this; None: there is
            always an answer if any span is possible.

    Returns:
        "answered" `(N,)` bool and "probability" `(N,)` float32 of the decision, from a softmax over
        the spans of all windows and, with a threshold, "no answer".
    """
    score, null, total = answers["score"], answers["null"], answers["log_total"]
    possible = score > IMPOSSIBLE
    if threshold is None:
        probability = tf.where(possible, tf.exp(score - total), 0.0)
        return {"answered": possible, "probability": probability}
    answered = possible & (null - score <= threshold)
    top = tf.maximum(total, null)
    total = top + tf.math.log(tf.exp(total - top) + tf.exp(null - top))
    return {
        "answered": answered,
        "probability": tf.exp(tf.where(answered, score, null) - total),
    }
