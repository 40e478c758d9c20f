"""What a translation run is judged by while it trains."""

import dataclasses
from collections.abc import Sequence

from experiments.translate.recipe import TranslationRecipe
from experiments.translate.run import source_limit
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import LineTranslator
from macaron_tf.evaluation import evaluate_translations
from macaron_tf.models import EncoderDecoder
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.training import FitModel

SAMPLES = 5
METRICS = ("loss", "nll", "perplexity", "accuracy", "bleu", "sacrebleu", "chrf")


class TranslationValidation:
    """Loss and BLEU of held-out text, and some translations to look at.

    BLEU is the papers' tokenized one under the recipe's metric, of greedy translations: a tenth
    of the time of a beam of 5, and enough to choose a checkpoint by.

    Args:
        recipe: data, metric and decoding settings.
        network: the network that is being trained.
        vocabulary: of the run.
        pairs: the held-out (source, target) lines; all count in the loss, the first
            `validation_lines` in BLEU.
    """

    def __init__(
        self,
        recipe: TranslationRecipe,
        network: EncoderDecoder,
        vocabulary: PieceVocabulary,
        pairs: Sequence[tuple[str, str]],
    ):
        self.metric = recipe.metric
        self.data = TranslationData.from_pairs(
            pairs,
            vocabulary,
            cleaning=dataclasses.replace(recipe.data.cleaning, max_ratio=None, deduplicate=False),
            batching=recipe.data.batching,
        )
        self.pairs = list(pairs[: recipe.data.validation_lines])
        greedy = dataclasses.replace(recipe.decoding, beam_size=1, n_best=1)
        self.translator = LineTranslator(
            network, vocabulary, greedy, max_source_length=source_limit(network)
        )

    def __call__(self, model: FitModel, step: int) -> dict:
        """The `METRICS` and `samples`, as `train` asks of a validation."""
        metrics = model.evaluate(self.data.evaluation_dataset(), verbose=0, return_dict=True)
        sources = [source for source, _ in self.pairs]
        references = [target for _, target in self.pairs]
        hypotheses = self.translator.translate(sources).best
        scores = evaluate_translations(hypotheses, references, self.metric)
        shown = zip(sources, references, hypotheses, strict=True)
        return {
            **{name: metrics[name] for name in METRICS[:4]},
            "bleu": scores.tokenized_bleu,
            "sacrebleu": scores.bleu,
            "chrf": scores.chrf,
            "samples": [
                f"source:      {source}\nreference:   {reference}\ntranslation: {hypothesis}"
                for source, reference, hypothesis in list(shown)[:SAMPLES]
            ],
        }
