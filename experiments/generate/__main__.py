"""Generates text with a pre-trained model, and scores text.

    python -m experiments.generate complete runs/gpt2 "The story of"
    python -m experiments.generate complete runs/gpt2 --temperature 0 < beginnings.txt
    python -m experiments.generate sample runs/gpt2 --samples 3 --top-p 0.9 --seed 7
    python -m experiments.generate score runs/gpt2 book.txt

The text is printed token by token. The same run, text, settings and seed give the same output;
sample k, counted from 0, uses the seed + k. `export.saved_model` writes a model that does the same.
"""

from experiments import command_line as cli

_FORMS = """RUN is the folder of a run of `python -m experiments.pretrain` with the objective
  causal_language, segment_language    GPT, Transformer-XL: continue a text
  span_corruption, denoising           T5, BART: read a text and answer it; [MASK] marks a gap
or of a run of `python -m experiments.text_to_text`, which answers lines of its task by sampling; or
hugging-face:DIR, a folder with a GPT, GPT-2, T5 or BART and its tokenizer. (GPT-2 reads
<|endoftext|> before the text. GPT has no token for the beginning or the end: it continues in lower
case up to --max-tokens.)

A text ends when the model ends it, after --max-tokens, or at the model's last position, whichever
is first. Line breaks in the given text are read as spaces, as in training.
"""

_RUN = cli.place("run", "folder of the run, or hugging-face:DIR")
_DRAWING = cli.together(
    cli.group(
        "sampling",
        cli.count(
            "--temperature T",
            "temperature of the sampling; 0 takes the most probable token (default 1)",
            1.0,
            least=0.0,
        ),
        cli.DRAWING,
        cli.count("--samples N", "number of texts for each given text (default 1)", 1),
        cli.count("--max-tokens N", "most new tokens (default 128)", 128),
        cli.count("--min-tokens N", "new tokens before the text may end (default 0)", 0, least=0),
    ),
    cli.checkpoint(),
    cli.JSON,
)

main = cli.program(
    "experiments.generate",
    __doc__,
    cli.command(
        "complete",
        "continue texts, or answer them",
        "experiments.generate.writing:complete",
        _RUN,
        cli.argument(
            "text", "texts to continue or answer (default: the lines of stdin)", nargs="*"
        ),
        _DRAWING,
    ),
    cli.command(
        "sample",
        "generate texts without a given beginning",
        "experiments.generate.writing:complete",
        _RUN,
        _DRAWING,
    ),
    cli.command(
        "score",
        "print the perplexity of text files, per token and per word",
        "experiments.generate.writing:score",
        _RUN,
        cli.place("files FILE", "text files, plain or .gz, each of which gets a score", nargs="+"),
        cli.count(
            "--window L", "tokens that the model sees at once (default: the length of its rows)"
        ),
        cli.count(
            "--stride S",
            "tokens from one window to the next; overlapping tokens are only context and not "
            "scored again (default: half a window)",
        ),
        cli.place("--output FILE", "JSON file for the scores"),
        cli.checkpoint(),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
