"""A model as a SavedModel: strings in, strings out, the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text` or `pretrain`,
or another place of `macaron_tf.load`, such as `hugging-face:DIR`. What the model is asked and
answers stands in the class of its task, in `macaron_tf.tasks`. OUT/VERSION is written, the layout
that TensorFlow Serving watches. A server needs tensorflow and tensorflow_text and nothing of this
project.
"""

import dataclasses
import os

from etils import epath

from macaron_tf.cli.arguments import TRUST_CODE, Parser, argument, checkpoint, count, place, switch
from macaron_tf.cli.command_names import as_typed
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MAX_VERSION
from macaron_tf.plug_ins import trusting

COMPILE = switch(
    "--compile",
    "a translator's requests of one line go through XLA: half the time, and seconds to compile "
    "at a server's start; TensorFlow Serving wants --xla_cpu_compilation_enabled=true",
)
BFLOAT16 = switch(
    "--bfloat16",
    "compute, and store matrices, in bfloat16: faster where the server's CPU has "
    "instructions for it, and slower elsewhere",
)


def export(
    place: str | os.PathLike,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
    compiled: bool = False,
    bfloat16: bool = False,
    pooling: str | None = None,
    **decoding,
) -> epath.Path:
    """Writes the model that a place holds as a new version; see `Pretrained.export`.

    Args:
        place: of `macaron_tf.load`.
        checkpoint: the weights of a run: "average", "best", "last" or a step; by default as its
            command chooses.
        version: its number; None = the next.
        compiled: see `Translation`; of translators alone.
        pooling: export vectors of sentences, pooled so, whatever else the encoder has learnt.
        bfloat16: see `TaskGraph.compute_in_bfloat16`; False = as it was trained.
        decoding: fields of a translator's beam search to replace, such as `n_best=4`.

    Raises:
        UserError: there is no such run or checkpoint, or it cannot be exported so.
    """
    # Imported late: `--help` answers without TensorFlow.
    from macaron_tf.places import load, locate
    from macaron_tf.tasks import Translation

    place = str(place)
    if checkpoint and locate(place).without_recipe:
        raise UserError(f"--checkpoint: {place} is no run and has one set of weights")
    model = load(f"{place}@{checkpoint}" if checkpoint else place)
    if pooling:
        model = dataclasses.replace(model, pooling=pooling)
    asked = {**decoding, "compile": True} if compiled else decoding
    if asked and not isinstance(model.task, Translation):
        flag = next(iter(asked)).replace("_", "-")
        raise UserError(f"--{flag}: {place} is no translator, and searches nothing")
    options = {**decoding, "compiled": True} if compiled else decoding
    return model.export(out, version, bfloat16, **options)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    parser = Parser(prog="python -m export.saved_model", description=__doc__)
    place("run", "folder of a trained run")(parser)
    place("out", "folder of the served model; versions are subfolders")(parser)
    checkpoint("average, best, last or a step's number")(parser)
    text = "number of the version; the next by default"
    count("--version N", text, least=1, below=MAX_VERSION + 1)(parser)
    count("--n-best N", "translations a line (default 1)")(parser)
    count("--beam-size K", "the recipe's by default")(parser)
    argument(
        "--pooling",
        "vectors of sentences, pooled so, of an encoder that has learnt something else",
        choices=("mean", "max", "cls"),
    )(parser)
    COMPILE(parser)
    BFLOAT16(parser)
    TRUST_CODE(parser)
    options = parser.parse_args(arguments)
    changes = {"n_best": options.n_best, "beam_size": options.beam_size}
    changes = {name: value for name, value in changes.items() if value is not None}
    given = (options.run, options.out, options.checkpoint, options.version)
    with trusting(options.trust_code):
        path = export(*given, options.compile, options.bfloat16, options.pooling, **changes)
    print(as_typed(f"exported {path}; serve it with: python -m export.serve {options.out}"))


if __name__ == "__main__":
    raise SystemExit(main())
