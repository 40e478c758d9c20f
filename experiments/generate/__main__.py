"""Text from a pre-trained language model: what follows a beginning, or anything at all.

    python -m experiments.generate complete runs/gpt2 "The story of"
    python -m experiments.generate complete runs/gpt2 --temperature 0 < beginnings.txt
    python -m experiments.generate sample runs/gpt2 --samples 3 --top-p 0.9 --seed 7
    python -m experiments.generate score runs/gpt2 book.txt

The text comes as it is drawn. The same run, text, settings and seed give the same text; sample k
draws with the seed + k, counted from 0. `export.saved_model` writes a model that does the same.
"""

import argparse
import sys

from experiments.command_line import checkpoint_option, command_parser
from macaron_tf.errors import UserError, exit_on_user_error

_FORMS = """runs of `python -m experiments.pretrain`:
  causal_language, segment_language    GPT, Transformer-XL: go on with a text
  span_corruption, denoising           T5, BART: read a text and answer it; [MASK] in it is a gap
runs of `python -m experiments.text_to_text`: answer lines of their task, by draws, not by a search
or hugging-face:DIR in place of the run's folder: a GPT, GPT-2, T5 or BART that lies in a folder,
with its tokenizer. (GPT-2 reads a text as the beginning of one, behind <|endoftext|>; GPT knows
neither a beginning nor an end: it goes on with texts, in small letters, to --max-tokens.)

A text ends where the model ends it, after --max-tokens, or with the model's last position,
whichever comes first. Line ends in what is given are read as spaces, as in the training's rows.
"""

_RUN = "folder of the run, or hugging-face:DIR"


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.generate", __doc__, _FORMS)

    complete = command("complete", "go on with texts, or answer them")
    complete.add_argument("run", help=_RUN)
    complete.add_argument("text", nargs="*", help="texts to go on with; lines of stdin by default")
    _drawing_options(complete)

    sample = command("sample", "texts from their first word")
    sample.add_argument("run", help=_RUN)
    _drawing_options(sample)

    score = command("score", "perplexity of files of text, a token and a word")
    score.add_argument("run", help=_RUN)
    score.add_argument("files", nargs="+", metavar="FILE", help="text, plain or .gz; a score each")
    score.add_argument(
        "--window",
        type=int,
        metavar="L",
        help="tokens that the model sees at once; those of its rows by default",
    )
    score.add_argument(
        "--stride",
        type=int,
        metavar="S",
        help="tokens from one window to the next; those before, which overlap, are seen and not "
        "scored (default: half a window)",
    )
    score.add_argument("--output", metavar="FILE", help="JSON of the scores")
    checkpoint_option(score)
    return parser


def _drawing_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drawing")
    group.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest token"
    )
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K likeliest")
    group.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="of the likeliest that make up P"
    )
    group.add_argument("--samples", type=int, default=1, metavar="N", help="texts of each")
    group.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (default 128)"
    )
    group.add_argument(
        "--min-tokens", type=int, default=0, metavar="N", help="new tokens before it may end"
    )
    group.add_argument("--seed", type=int, default=1, help="same seed, same text (default 1)")
    checkpoint_option(parser)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    if options.command == "score":
        for name, value in (("window", options.window), ("stride", options.stride)):
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: give a whole number of 1 or more")
    # Each command imports what it needs: `--help` answers without TensorFlow.
    from experiments.generate import commands

    if options.command == "score":
        commands.score(options)
    else:
        commands.complete(options)


if __name__ == "__main__":
    sys.exit(main())
