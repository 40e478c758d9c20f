"""Where a sentence encoder comes from: a run of any kind, or another library's directory."""

import dataclasses

from etils import epath

from experiments.embed.run import EmbeddingRun
from experiments.embed.sentence_encoder import SentenceEncoder
from experiments.finetune.init import Init, read_init
from experiments.run import read_kind
from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.pretrained import is_library, run_place

_LONGEST = 128  # of a model that does not say what it was trained on


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """An encoder's weights, and how it makes one vector of a sentence, where that is known.

    Attributes:
        init: model, vocabulary and weights.
        pooling: None = it never pooled.
        normalize: whether its vectors are of length 1.
        max_length: longest row it is meant for; None = not said.
    """

    init: Init
    pooling: str | None = None
    normalize: bool = False
    max_length: int | None = None


def read_start(
    given: str,
    model: str | None = None,
    vocabulary: str | None = None,
    lower_case: bool | None = None,
) -> Start:
    """Reads what `--init` names.

    Args:
        given: as for `read_init`; or the folder of a run of this kind, with `@CHECKPOINT` where the
            checkpoint is not to be the default one; or `hugging-face:DIR` of a
            sentence-transformers directory.
        model, vocabulary, lower_case: as for `read_init`.

    Raises:
        UserError: as `read_init`.
    """
    init = read_init(given, model, vocabulary, lower_case, pooling=True)
    if init.config.summary == "last":
        raise UserError(
            f"{given} is an XLNet whose rows end with [CLS], and a sentence's begin with it here: "
            "give another encoder, or a run of xlnet_tiny or xlnet_base"
        )
    source = init.source
    return (
        Start(init, source.pooling, source.normalize, source.max_length) if source else Start(init)
    )


def open_encoder(
    given: str,
    pooling: str | None = None,
    max_length: int | None = None,
    lower_case: bool | None = None,
) -> tuple[SentenceEncoder, EmbeddingRun | None]:
    """A sentence encoder that is ready to use; of a run of this kind its classifier too.

    Args:
        given: as for `read_start`, but for `none`.
        pooling: instead of its own; `"mean"` for one that never pooled.
        max_length: instead of its own.
        lower_case: as for `read_init`.

    Returns:
        The encoder, and the run, where it is one of this kind.

    Raises:
        UserError: as `read_start`; there is no such checkpoint, or the model has fewer positions.
    """
    found = _embedding_run(given)
    if found:
        run, checkpoint = EmbeddingRun.open(found[0]), found[1]
        if pooling:
            recipe = dataclasses.replace(run.recipe, pooling=pooling)
            run = dataclasses.replace(run, recipe=recipe)
        network, vocabulary = run.load_network(checkpoint), run.vocabulary
        own_length = run.recipe.max_length
    else:
        run, start = None, read_start(given, lower_case=lower_case)
        vocabulary, trained_length = start.init.vocabulary, start.init.trained_length
        options = {**dict(start.init.model_options), "vocab_size": vocabulary.size}
        config = catalog.config(start.init.model, **options)
        network = SiameseEncoder(config, pooling or start.pooling or "mean", start.normalize)
        network.build()
        start.init.copy_to(network)
        own_length = start.max_length or trained_length or min(_LONGEST, config.max_length)
    longest = network.config.longest
    if max_length is not None and longest is not None and longest < max_length:
        raise UserError(
            f"--max-length {max_length}: {given} has {longest} positions: give as many or less"
        )
    max_length = own_length if max_length is None else max_length
    return SentenceEncoder(network, vocabulary, max_length), run


def _embedding_run(given: str) -> tuple[epath.Path, str | None] | None:
    """The folder of a run of this kind and the checkpoint's name, if it is one."""
    if is_library(given):
        return None
    path, checkpoint = run_place(given)
    if not (path / "recipe.json").is_file() or read_kind(path) != EmbeddingRun.recipe_class.kind:
        return None
    return path, checkpoint
