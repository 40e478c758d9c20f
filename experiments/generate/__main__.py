"""Generates text with a pre-trained model, and scores text.

    python -m experiments.generate complete runs/gpt2 "The story of"
    python -m experiments.generate complete runs/gpt2 --temperature 0 < beginnings.txt
    python -m experiments.generate sample runs/gpt2 --samples 3 --top-p 0.9 --seed 7
    python -m experiments.generate score runs/gpt2 book.txt

The command prints text token by token. The same run, text, settings and seed give the same output.
Sample k uses the seed of --seed plus k, where k is 0 for the first sample. `export.saved_model`
exports a model that generates the same text.
"""

from experiments import command_line as cli

_FORMS = """RUN has one of three forms:
  a run of `python -m experiments.pretrain` with one of these objectives:
    causal_language, segment_language   the model continues a text, like GPT and Transformer-XL
    span_corruption, denoising          the model answers a text, like T5 and BART; [MASK] marks a
                                        gap that the answer fills
  a run of `python -m experiments.text_to_text`, which answers lines of its task
  hugging-face:DIR, a folder with a GPT, GPT-2, T5 or BART and its tokenizer

GPT-2 reads <|endoftext|> before the text. GPT has no token for the start or the end of a text, so
it generates --max-tokens tokens, in lower case.

Generation stops at the end token, after --max-tokens tokens, or at the last position of the model,
whichever comes first. Line breaks in the given text become spaces, as in training.
"""

_RUN = cli.place("run", "folder of the run, or hugging-face:DIR")
_DRAWING = cli.together(
    cli.group(
        "sampling",
        cli.count(
            "--temperature T",
            "sampling temperature; 0 means the most probable token (default: 1)",
            1.0,
            least=0.0,
        ),
        cli.DRAWING,
        cli.count("--samples N", "number of samples for each given text (default: 1)", 1),
        cli.count("--max-tokens N", "maximum number of new tokens (default: 128)", 128),
        cli.count("--min-tokens N", "minimum number of new tokens (default: 0)", 0, least=0),
    ),
    cli.checkpoint(),
    cli.JSON,
)

main = cli.program(
    "experiments.generate",
    __doc__,
    cli.command(
        "complete",
        "continue texts or answer texts",
        "experiments.generate.writing:complete",
        _RUN,
        cli.argument(
            "text", "texts to continue or answer (default: each line of stdin)", nargs="*"
        ),
        _DRAWING,
    ),
    cli.command(
        "sample",
        "generate texts from an empty prompt",
        "experiments.generate.writing:complete",
        _RUN,
        _DRAWING,
    ),
    cli.command(
        "score",
        "print the perplexity of text files, per token and per word",
        "experiments.generate.writing:score",
        _RUN,
        cli.place("files FILE", "text files to score, plain or .gz", nargs="+"),
        cli.count(
            "--window L",
            "maximum number of tokens that the model reads at once (default: the training length)",
        ),
        cli.count(
            "--stride S",
            "number of tokens between the starts of two windows; each token is scored once, and "
            "overlapping tokens serve as context (default: half a window)",
        ),
        cli.place("--output FILE", "JSON file for the scores (default: print them only)"),
        cli.checkpoint(),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
