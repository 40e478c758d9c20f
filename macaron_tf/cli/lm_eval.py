"""Language models of this library in lm-evaluation-harness.

    lm_eval --model macaron --model_args path=runs/gpt2 --tasks lambada_openai

Up to version 0.4.13, lm_eval does not look for models of other packages. There,
`python -m macaron_tf.cli.lm_eval` takes the arguments of `lm_eval`.
"""

import collections
from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from macaron_tf.decoding import GenerationConfig, SequenceGenerator, TextScorer
from macaron_tf.decoding.scoring import split_ids
from macaron_tf.errors import UserError
from macaron_tf.model import load
from macaron_tf.tasks.generation import Continuation
from macaron_tf.text.normalization import as_prompt

# Tokens that a batch generates before answers are searched for stop strings. A piece costs one more
# prefill, and an answer that has ended leaves the batch after its piece.
_PIECE = 32


@register_model("macaron")
class Macaron(LM):
    """A causal language model, which scores and continues texts for lm_eval.

    Batches are formed by length. `batch_size`, `max_batch_size` and `device`, which lm_eval always
    gives, have no effect.

    Args:
        max_length: maximum number of tokens that the network reads; `None` means as many as in
            training.
    """

    def __init__(
        self,
        path: str,
        trust_code: bool = False,
        max_length: int | None = None,
        **unread: Any,
    ):
        super().__init__()
        model = load(path, trust_code=trust_code)
        task = model.task
        if not isinstance(task, Continuation) or isinstance(task.generator, SequenceGenerator):
            raise UserError(f"{path} is not a causal language model: give a GPT, GPT-2 or Llama")
        self.generator, self.vocabulary = task.generator, model.vocabulary
        # Rows of L tokens train the first L - 1 positions, because the last token is only a label.
        max_length = max_length or task.window - (model.card.trained_length is not None)
        self.max_length = max_length
        # Contexts below begin with [CLS] themselves.
        self.scorer = TextScorer(
            self.generator.model, self.vocabulary, max_length + 1, starts=False
        )
        # What begins a text. Without [CLS], it is the end of the text before, as in lm_eval.
        self.start = self.generator.prefix or [self.generator.end_ids[0]]

    def _context(self, ids: Sequence[int], room: int) -> list[int]:
        """Returns a context of at most `room` tokens, which is cut on the left."""
        prefix = self.generator.prefix
        kept = max(room - len(prefix), 0)
        return [*prefix, *ids[max(len(ids) - kept, 0) :]] or self.start

    def loglikelihood(self, requests: list[Instance], **progress: Any) -> list[tuple[float, bool]]:
        line_ends, texts = self.generator.line_ends, []
        for context, continuation in (request.args for request in requests):
            # The space between context and continuation belongs to the continuation.
            head, whole = (as_prompt(text, line_ends) for text in (context, context + continuation))
            texts.append((head, whole[len(head) :]))
        pairs = [
            (self._context(context, self.max_length + 1 - len(continuation)), continuation)
            for context, continuation in split_ids(self.vocabulary, texts)
        ]
        scores = self.scorer.score(pairs)
        return list(zip(scores.log_probs.tolist(), scores.greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], **progress: Any) -> list[float]:
        texts = [self.scorer.read(request.args[0]) for request in requests]
        prefix, pairs, owners = self.generator.prefix, [], []
        # Each window begins with [CLS], if the model has it, and one token of the window before.
        length = self.max_length - len(prefix)
        for owner, ids in enumerate(self.vocabulary.encode_lines(texts)):
            windows = [*get_rolling_token_windows(ids, self.start[0], length, 1)]
            for number, (context, continuation) in enumerate(map(make_disjoint_window, windows)):
                pairs.append(([*prefix, *context] if number else context, continuation))
                owners.append(owner)
        totals = [0.0] * len(texts)
        for owner, log_prob in zip(owners, self.scorer.score(pairs).log_probs, strict=True):
            totals[owner] += float(log_prob)
        return totals

    def generate_until(self, requests: list[Instance], **progress: Any) -> list[str]:
        answers, groups = [""] * len(requests), collections.defaultdict(list)
        contexts = [as_prompt(request.args[0], self.generator.line_ends) for request in requests]
        for index, ids in enumerate(self.vocabulary.encode_lines(contexts)):
            settings = normalize_gen_kwargs(requests[index].args[1])
            # A prompt keeps at least half of the row.
            count = min(settings["max_gen_toks"], self.max_length // 2)
            row = self._context(ids, self.max_length - count)
            draw = {"temperature": 0.0, "max_tokens": min(_PIECE, count)}
            names = ("temperature", "top_k", "top_p")
            draw |= {name: settings[name] for name in names if name in settings}
            groups[GenerationConfig(**draw)].append((index, row, count, settings["until"]))
        for config, group in groups.items():
            written: dict[int, list[int]] = {index: [] for index, *_ in group}
            piece = 1
            while group:
                rows = [[*row, *written[index]] for index, row, *_ in group]
                waiting, completions = [], self.generator.continue_rows(rows, config, seed=piece)
                for item, [completion] in zip(group, completions, strict=True):
                    index, _, count, stops = item
                    ids = completion.ids[: len(completion.ids) - completion.ended]
                    written[index] = [*written[index], *ids][:count]
                    whole = text = self.generator.detokenizer(written[index])
                    for stop in filter(None, stops):
                        text = text.split(stop)[0]
                    answers[index] = text
                    if not completion.ended and text == whole and len(written[index]) < count:
                        waiting.append(item)
                group, piece = waiting, piece + 1
        return answers


if __name__ == "__main__":
    cli_evaluate()
