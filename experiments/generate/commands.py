"""Generates text with a pre-trained model, and scores text.

    macaron generate complete runs/gpt2 "The story of"
    macaron generate complete runs/gpt2 --temperature 0 < beginnings.txt
    macaron generate sample runs/gpt2 --samples 3 --top-p 0.9 --seed 7
    macaron generate score runs/gpt2 book.txt

The command prints text token by token. The same run, text, settings and seed give the same output.
Sample k uses the seed SEED + k, where SEED is the value of --seed and k is 0 for the first sample.
`macaron export` exports a model that generates the same text.
"""

from experiments import command_line as cli

_FORMS = """RUN has one of three forms:
  a run of `macaron pretrain` with one of these objectives:
    causal_language, segment_language   the model, a GPT or Transformer-XL, continues the prompt
    span_corruption, denoising          the model, a T5 or BART, generates an output for a prompt in
                                        which [MASK] marks a gap to fill
  a run of `macaron text_to_text`, which generates the outputs of its task
  hugging-face:DIR, a folder with a GPT, GPT-2, Llama, T5 or BART and its tokenizer

Generation stops at the end token, after --max-tokens tokens, or at the last position of the model,
whichever comes first. GPT-2 reads the token <|endoftext|> before the prompt. GPT has no end token,
so a GPT generates --max-tokens tokens, in lower case. Line breaks in the prompt become spaces, as
in training.
"""

_RUN = cli.path_argument(
    "run", "model that generates text: the folder of a training run, or hugging-face:DIR"
)
_SAMPLING = cli.together(
    cli.group(
        "sampling",
        cli.count(
            "--temperature T",
            "temperature of sampling; 0 takes the most probable token (default: 1)",
            1.0,
            minimum=0.0,
        ),
        cli.SAMPLING,
        cli.count("--samples N", "number of samples for each prompt (default: 1)", 1),
        cli.count("--max-tokens N", "maximum number of tokens to generate (default: 128)", 128),
        cli.count("--min-tokens N", "minimum number of tokens (default: 0)", 0, minimum=0),
    ),
    cli.checkpoint(),
    cli.JSON,
)

main = cli.program(
    "macaron generate",
    __doc__,
    cli.command(
        "complete",
        "generate text for prompts",
        "experiments.generate.writing:complete",
        _RUN,
        cli.argument(
            "text",
            "prompts: texts that a language model continues, or inputs to an encoder-decoder "
            "(default: each line of stdin)",
            nargs="*",
        ),
        _SAMPLING,
    ),
    cli.command(
        "sample",
        "generate text from an empty prompt",
        "experiments.generate.writing:complete",
        _RUN,
        _SAMPLING,
    ),
    cli.command(
        "score",
        "print the perplexity of text files, per token and per word",
        "experiments.generate.writing:score",
        _RUN,
        cli.path_argument(
            "files FILE", "text files to score, plain or compressed (.gz, .bz2, .xz)", nargs="+"
        ),
        cli.count(
            "--window L",
            "number of tokens that the model reads at once (default: the sequence length in "
            "training or, if it is unknown, the number of positions of the model)",
        ),
        cli.count(
            "--stride S",
            "number of tokens by which the window moves. Each token is scored once, and is context "
            "in the next window (default: half of the window)",
        ),
        cli.path_argument("--output FILE", "also write the scores to this JSON file"),
        cli.checkpoint(),
    ),
    epilog=_FORMS,
)
