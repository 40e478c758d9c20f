"""A run's folder: what a training writes and what everything after it reads.

RUN/recipe.json          every setting, overrides included
RUN/vocabulary/          the SentencePiece model and its settings
RUN/checkpoints/         step-00001000/ ..., best.json
RUN/average/             averaged weights, once `translate average` has made them
RUN/metrics.jsonl        one line a log point; RUN/tensorboard/ the same as curves
RUN/scores/              what `translate evaluate` measured
"""

import dataclasses
import pathlib

from experiments.recipe import TranslationRecipe, recipe_from_json
from macaron_tf.data.files import write_aside
from macaron_tf.data.vocabulary import Vocabulary
from macaron_tf.decoding import BeamSearchConfig, LineTranslator, SamplingConfig
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoder, catalog
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.state import load_network


def build_network(recipe: TranslationRecipe, vocabulary: Vocabulary) -> EncoderDecoder:
    """The recipe's model at the vocabulary's size, in the recipe's dtype policy.

    Raises:
        UserError: the recipe names a model or a model option that does not exist.
    """
    try:
        return catalog.build(
            recipe.model,
            dtype=recipe.training.dtype_policy,
            vocab_size=vocabulary.size,
            **dict(recipe.model_options),
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"model {recipe.model}: {error}") from error


@dataclasses.dataclass(frozen=True)
class TranslationRun:
    """A finished or running training: its folder, recipe and vocabulary."""

    path: pathlib.Path
    recipe: TranslationRecipe
    vocabulary: Vocabulary

    @classmethod
    def create(
        cls, path: pathlib.Path, recipe: TranslationRecipe, vocabulary: Vocabulary
    ) -> "TranslationRun":
        """Writes the recipe and the vocabulary into a new run's folder.

        Raises:
            UserError: the folder cannot be written.
        """
        vocabulary.save(path / "vocabulary")
        write_aside(path / "recipe.json", recipe.to_json().encode())
        return cls(path, recipe, vocabulary)

    @classmethod
    def open(cls, path: str | pathlib.Path) -> "TranslationRun":
        """Reads a run's recipe and vocabulary.

        Raises:
            UserError: the folder is no run, or its files are damaged.
        """
        path = pathlib.Path(path)
        recipe_file = path / "recipe.json"
        try:
            text = recipe_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} is not a run: cannot read {recipe_file}; give the folder that "
                "`python -m experiments.translate train RECIPE RUN` wrote"
            ) from error
        vocabulary = Vocabulary.load(path / "vocabulary")
        return cls(path, recipe_from_json(text, str(recipe_file)), vocabulary)

    def checkpoint(self, name: str | None = None) -> pathlib.Path:
        """The folder of a checkpoint.

        Args:
            name: "average", "best", "last" or a step's number; None takes the average where
                there is one, else the best, else the last.

        Raises:
            UserError: there is no such checkpoint; it says which there are.
        """
        directory = CheckpointDirectory(self.path)
        best = directory.best()
        found = {str(step): directory.of_step(step) for step in directory.steps()}
        if best:
            found["best"] = directory.of_step(best["step"])
        if (self.path / "average").is_dir():
            found["average"] = self.path / "average"
        if name in (None, "last") and (latest := directory.latest()):
            found["last"] = latest
        wanted = [name] if name else ["average", "best", "last"]
        for choice in wanted:
            if choice in found:
                return found[choice]
        raise UserError(
            f"{self.path} has no checkpoint {name or 'yet'}; "
            + (f"there are {', '.join(found)}" if found else "train it first")
        )

    def load_network(self, checkpoint: str | None = None) -> EncoderDecoder:
        """The network with a checkpoint's weights.

        Raises:
            UserError: no such checkpoint, a damaged one, or one of another vocabulary or shape.
        """
        network = build_network(self.recipe, self.vocabulary)
        load_network(self.checkpoint(checkpoint), network, self.vocabulary.hash)
        return network

    def translator(
        self,
        checkpoint: str | None = None,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
    ) -> LineTranslator:
        """Lines to lines with a checkpoint's weights.

        Args:
            checkpoint: see `checkpoint`.
            decoding: the recipe's beam search by default.
            seed: of sampling.
        """
        return LineTranslator(
            self.load_network(checkpoint),
            self.vocabulary,
            decoding or self.recipe.decoding,
            seed=seed,
        )
