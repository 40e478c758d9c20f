"""What `translate train --init` names."""

from collections.abc import Sequence

from experiments.finetune.init import read_init
from experiments.kind import read_kind, run_place
from experiments.pretrain.recipe import CORRUPTING
from experiments.pretrain.run import PretrainingRun
from experiments.translate.start import Start
from experiments.translate.start_encoder import EncoderStart
from experiments.translate.start_sequence import SequenceStart
from macaron_tf.errors import UserError
from macaron_tf.models.encoder_decoder import PARTS


def read_start(given: str, parts: Sequence[str] | None = None, decoder: str | None = None) -> Start:
    """Reads what `--init`, `--init-parts` and `--init-decoder` name.

    Args:
        given: the folder of a run, with `@CHECKPOINT` where the checkpoint is not to be the
            default one; see `read_init` for what else there is.
        parts: of `PARTS`; None = both stacks.
        decoder: as `given`, of the decoder alone.

    Raises:
        UserError: there is no such thing, or it cannot begin a translation.
    """
    path, checkpoint = run_place(given)
    if (path / "recipe.json").is_file() and read_kind(path) == "pretraining":
        run = PretrainingRun.open(path)
        if run.recipe.objective in CORRUPTING:
            for flag, value in (("--init-parts", parts), ("--init-decoder", decoder)):
                if value:
                    raise UserError(f"{flag}: {given} is an encoder-decoder and is taken whole")
            return SequenceStart(given, run, checkpoint)
    chosen = tuple(part for part in PARTS if part in (parts or PARTS[1:]))
    if decoder:
        chosen = tuple(part for part in chosen if part != "decoder") or PARTS[:1]
    return EncoderStart(given, read_init(given), chosen, read_init(decoder) if decoder else None)
