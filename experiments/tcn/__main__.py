"""The temporal convolutional network on the slides' tasks, beside LSTM, GRU and RNN of its size.

    python -m experiments.tcn jsb out/jsb --data music/JSB_Chorales.mat
    python -m experiments.tcn nottingham out/nottingham --data music/Nottingham.mat
    python -m experiments.tcn adding out/adding
    python -m experiments.tcn copy_memory out/copy
    python -m experiments.tcn ptb_words out/words --data ptb
    python -m experiments.tcn ptb_characters out/characters --data ptb
    python -m experiments.tcn mnist out/mnist --data-dir DIR
    python -m experiments.tcn permuted_mnist out/permuted --data-dir DIR

The recurrent models are Keras's own layers, one of them with as many parameters as the TCN. Writes
OUT/TASK.md, .json and .png, and a run's folder for each model and seed. Complete runs are not
trained again: an interrupted command goes on when it is given again. The settings are those of
`tcn_TASK` in experiments/recipes/tcn.py.
"""

from experiments import command_line as cli

_MODELS = ("tcn", "lstm", "gru", "rnn")

main = cli.single_program(
    "experiments.tcn",
    __doc__,
    "experiments.tcn.train:run",
    cli.argument("task TASK", "one of those above"),
    cli.argument("out", "folder of runs and results"),
    cli.argument("--data PATH", "the .mat file of music, the folder of ptb's texts"),
    cli.argument("--models", "default: all four", nargs="+", choices=_MODELS, default=_MODELS),
    cli.number("--seeds N", "default 1", [1], nargs="+"),
    cli.TFDS,
    cli.settings("training.max_steps=500 or batch_size=8, of all the models"),
)

if __name__ == "__main__":
    raise SystemExit(main())
