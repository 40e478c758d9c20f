"""Compares a temporal convolutional network (TCN) with recurrent networks of equal size.

    macaron tcn train jsb out/jsb --data music/JSB_Chorales.mat
    macaron tcn train nottingham out/nottingham --data music/Nottingham.mat
    macaron tcn train adding out/adding
    macaron tcn train copy_memory out/copy
    macaron tcn train ptb_words out/words --data ptb
    macaron tcn train ptb_characters out/characters --data ptb
    macaron tcn train wikitext out/wikitext --data-dir DIR
    macaron tcn train lambada out/lambada --data lambada --data-dir DIR
    macaron tcn train mnist out/mnist --data-dir DIR
    macaron tcn train permuted_mnist out/permuted --data-dir DIR

The recurrent networks are the LSTM, GRU and RNN layers of Keras, with nearly as many parameters as
the TCN. The command writes OUT/TASK.md, OUT/TASK.json and OUT/TASK.png, and a folder OUT/MODEL-SEED
for each run. Complete runs are not trained again. To resume an interrupted command, give the same
command again. The recipe of TASK is `tcn_TASK`.
"""

from experiments import command_line as cli

main = cli.program(
    "macaron tcn",
    __doc__,
    cli.command(
        "train",
        "train and compare a TCN and recurrent networks on a task",
        "experiments.tcn.train:run",
        cli.extra("train"),
        cli.local_path_argument(
            "task",
            "name of a task: adding, copy_memory, jsb, nottingham, ptb_words, ptb_characters, "
            "wikitext, lambada, mnist or permuted_mnist; or your own function that returns a "
            "recipe, as FILE.py[:NAME]",
        ),
        cli.path_argument("out", "output folder for the training runs and the report"),
        cli.argument(
            "--models",
            "models to train (default: all)",
            nargs="+",
            choices=("tcn", "lstm", "gru", "rnn"),
            default=["tcn", "lstm", "gru", "rnn"],
            action=cli.Distinct,
        ),
        cli.seeds([1], "random seeds; the command trains each model with every seed"),
        cli.local_path_argument(
            "--data PATH",
            "a .mat file with music for jsb and nottingham; a folder with train.txt, valid.txt and "
            "test.txt for ptb_words and ptb_characters, or with dev.txt and test.txt for lambada, "
            "each of which may be compressed to .txt.gz",
        ),
        cli.TFDS,
        cli.settings("training.max_steps=500 or batch_size=8, for all models"),
        cli.CALLBACKS,
    ),
    *cli.recipes("experiments.tcn.run:SequenceRecipe"),
)
