"""Text from a pre-trained language model: what follows a beginning, or anything at all.

    python -m experiments.generate complete runs/gpt2 "The story of"
    python -m experiments.generate complete runs/gpt2 --temperature 0 < beginnings.txt
    python -m experiments.generate sample runs/gpt2 --samples 3 --top-p 0.9 --seed 7
    python -m experiments.generate score runs/gpt2 book.txt

The text comes as it is drawn. The same run, text, settings and seed give the same text; sample k
draws with the seed + k, counted from 0. `export.saved_model` writes a model that does the same.
"""

from experiments import command_line as cli

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

_RUN = cli.place("run", "folder of the run, or hugging-face:DIR")
_DRAWING = cli.together(
    cli.group(
        "drawing",
        cli.count("--temperature T", "0 takes the likeliest token", 1.0, least=0.0),
        cli.DRAWING,
        cli.count("--samples N", "texts of each", 1),
        cli.count("--max-tokens N", "new tokens at most (default 128)", 128),
        cli.count("--min-tokens N", "new tokens before it may end", 0, least=0),
    ),
    cli.checkpoint(),
    cli.JSON,
)

main = cli.program(
    "experiments.generate",
    __doc__,
    cli.command(
        "complete",
        "go on with texts, or answer them",
        "experiments.generate.writing:complete",
        _RUN,
        cli.argument("text", "texts to go on with; lines of stdin by default", nargs="*"),
        _DRAWING,
    ),
    cli.command(
        "sample",
        "texts from their first word",
        "experiments.generate.writing:complete",
        _RUN,
        _DRAWING,
    ),
    cli.command(
        "score",
        "perplexity of files of text, a token and a word",
        "experiments.generate.writing:score",
        _RUN,
        cli.place("files FILE", "text, plain or .gz; a score each", nargs="+"),
        cli.count("--window L", "tokens that the model sees at once; those of its rows by default"),
        cli.count(
            "--stride S",
            "tokens from one window to the next; those before, which overlap, are seen and not "
            "scored (default: half a window)",
        ),
        cli.place("--output FILE", "JSON of the scores"),
        cli.checkpoint(),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
