"""A run as a SavedModel: strings in, strings out, the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text`, or of
`pretrain` where the model continues texts, or a folder that `save_pretrained` wrote of one; or
another place of `macaron_tf.load`, such as `hugging-face:DIR`: an encoder of sentences, or a model
that writes text. Its signatures stand in the module's class: `export.translator`,
`export.fine_tuned`, `export.embedders`, `export.generator`. OUT/VERSION is written, the layout that
TensorFlow Serving watches. A server needs tensorflow and tensorflow_text and nothing of this
project.
"""

import os

from etils import epath

from export.server.config import MAX_VERSION
from macaron_tf.cli.arguments import TRUST_CODE, Parser, checkpoint, count, place, switch
from macaron_tf.cli.command_names import as_typed
from macaron_tf.cli.program import exit_on_user_error
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
    **decoding,
) -> epath.Path:
    """Writes the model that a place holds as a new version; see `export.places.open_module`.

    Args:
        version: its number; None = the next.
        bfloat16: see `ExportedModule.compute_in_bfloat16`; False = as it was trained.
    """
    # Imported late: `--help` answers without TensorFlow.
    from export.module import write_version
    from export.places import open_module

    module, record = open_module(str(place), checkpoint, compiled, **decoding)
    if bfloat16:
        module.compute_in_bfloat16(str(place))
    return write_version(module, record, out, version)


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
    COMPILE(parser)
    BFLOAT16(parser)
    TRUST_CODE(parser)
    options = parser.parse_args(arguments)
    changes = {"n_best": options.n_best, "beam_size": options.beam_size}
    changes = {name: value for name, value in changes.items() if value is not None}
    given = (options.run, options.out, options.checkpoint, options.version)
    with trusting(options.trust_code):
        path = export(*given, options.compile, options.bfloat16, **changes)
    print(as_typed(f"exported {path}; serve it with: python -m export.serve {options.out}"))


if __name__ == "__main__":
    raise SystemExit(main())
