"""Commands refuse bad input in one sentence that names it, and leave nothing behind."""

import re
import shlex

import pytest

from macaron_tf.cli.launcher import main
from tests.toys.runs import words_of

# Words of a command that stand for the value of a fixture, or for a run of a recipe. FILES is a
# folder of files, and OUT a path that does not exist.
VALUES = {"TOY": "toy", "RUN": "toy_run", "READING": "reading", "STS": "embedding_run"}
VALUES |= {"BERT": "masked_run", "GPT": "language_run", "T5": "t5_run", "ELMO": "elmo_run"}
VALUES |= {"NUMBERS": "number_run", "TUNES": "tunes", "FILES": "files", "BART": "bart_tiny"}
# First words of a command that stand for several; TRAIN RECIPE stands for a command of a recipe.
FIRST = {
    "OWN": "train finetune:sst2 OUT --set data.source=tsv:TOY/{split}.tsv --set data.max_length=16",
    "TUNE": "TRAIN finetune:sst2",
    "STSB": "TRAIN sentence_bert:stsb",
    "SQUAD": "train finetune:squad OUT --set data.source=jsonl:READING/{split}.jsonl --set "
    "model=bert_tiny --vocabulary READING/vocabulary --set data.spans.max_question=4",
    "TRANSLATE": "TRAIN multi30k_macaron_tiny",
    "FROM_XLM": "TRAIN multi30k_xlm_tiny",
    "FROM_BART": "TRAIN multi30k_bart_tiny",
    "ENCODERS": "compare OUT bert_tiny bert_rab_tiny",
    "EQUAL": "compare OUT --equal parameters --jobs 1",
}
FINE_TUNING = [
    ("train finetune OUT --init RUN", "finetune needs a task"),
    ("train bert_tiny:sst2 OUT", "bert_tiny has no tasks"),
    ("TUNE --set data.max_length=17", "the model has 16 positions"),
    ("TUNE --set data.max_length=2", "max_length=2 is too small"),
    ("OWN --init /nowhere", "/nowhere has no readable model.json"),
    ("OWN", "--vocabulary"),
    ("OWN --vocabulary TOY/vocabulary --set model=bert_tiny --lower-case", "unlike --vocabulary"),
    ("OWN --init RUN --vocabulary TOY/vocabulary", "already has a vocabulary"),
    ("OWN --init RUN --set model.hidden_dim=16", "needs model.hidden_dim=32, not 16"),
    ("OWN --vocabulary TOY/vocabulary --set model=elmo_tiny", "needs pre-trained weights"),
    ("evaluate RUN --source tsv:FILES/secret.tsv", "has no labels"),
]
OTHERS = [
    ("SQUAD --set data.max_length=48", "the task squad2"),
    ("predict READING/squad2 --input FILES/pairs", "line 2 has 1 column: write"),
    ("submit READING/squad2 OUT", "that the GLUE server scores"),
    ("train sentence_bert:sst2 OUT", "sst2 is not a task with sentence pairs"),
    ("STSB --set task.concatenation=u,w", "must be some of u, v"),
    ("STSB --set data.max_length=99", "16 positions"),
    ("evaluate STS --task rte", "but must be none: give --task stsb"),
    ("train demo OUT --corpus BERT/../corpus", "--corpus"),
    ("train gpt2_tiny OUT --init BERT", "does not support model.causal=False"),
    ("train bert_tiny OUT --init BERT --vocabulary x", "already has a vocabulary"),
    ("train bert_tiny OUT --init BERT --resume BERT", "RUN and --init: the run"),
    (f"predict BERT '{'a ' * 600}[MASK]'", "more than the 16 tokens that the model"),
    (f"predict GPT '{'a ' * 40}'", "shorten to"),
    ("predict FILES a", "has no readable model.json"),
    ("score NUMBERS a", "is a translator, which"),
    ("score T5 a", "which cannot score texts"),
    ("score GPT FILES/none.txt", "cannot read"),
    ("train text_to_text:squad2 OUT --init T5", "task.name is 'squad2', but must be one of"),
    ("train text_to_text:sst2+translation OUT --init T5", "'translation' has no default"),
    ("train text_to_text:sst2+cola OUT --init T5 --set data.source=tsv:x", "tsv:x has no effect"),
    ("train text_to_text:sst2 OUT --init T5 --set task.decoding.max_length=9", "is not possible"),
    ("train text_to_text:sst2 OUT", "--init"),
    ("train elmo_tiny OUT --set data.sources=text:FILES/one.txt", "the only document is"),
    ("train finetune:copa OUT --init ELMO", "has choices, which ELMo does not"),
    ("train finetune:rte OUT --init ELMO --set task.words.max_characters=9", "is not possible"),
    ("train finetune:rte OUT --set model=elmo_tiny --vocabulary ELMO", "--init RUN"),
    ("train tcn_jsb OUT", "data.path is missing"),
    ("train tcn_jsb OUT --set data.path=FILES/other.mat", "must hold matrices with 88 columns"),
    ("train tcn_jsb OUT --set data.path=FILES/loud.mat", "columns of zeros and ones"),
    ("train tcn_jsb OUT --set data.path=TUNES --set model=bert_tiny", "does not fit: set model"),
    ("predict NUMBERS a --json --set temperature=0", "temperature="),
    ("predict NUMBERS a --json --backward", "--backward applies only to"),
    ("predict NUMBERS --json --input FILES/long", "/long, line 258: a line has more than 256 tok"),
    ("predict GPT a --json --set num_samples=2", "num_samples="),
    ("predict NUMBERS a --backward", "--backward is not possible: give a run"),
    ("evaluate NUMBERS --backward", "--backward is not possible: give a run"),
    ("evaluate NUMBERS --set data.source_language=de", "has no effect in an evaluation of a run"),
    ("FROM_XLM --set model.hidden_dim=64", "needs model.hidden_dim=32, not 64"),
    ("FROM_XLM --set data.target_language=ru", "but not for 'ru'"),
    ("FROM_XLM --set data.cleaning.max_tokens=999", "is 999, but the model has "),
    ("FROM_XLM --vocabulary BART/vocabulary", "already has a vocabulary"),
    ("FROM_BART --set init_parts=encoder", "cannot be combined"),
    ("FROM_BART --set model.num_source_layers=0 --set task.first_stage_steps=0",
     "needs model.num_source_layers="),
    ("train multi30k_bart_tiny OUT", "needs --init with a run of BART or T5"),
    ("TRAIN bert_tiny --corpus BERT/../corpus --set data.sequence_length=32",
     "prepared with sequence_length=16"),
    ("TRAIN bert_tiny --corpus BERT/../corpus --set data.batch_size=100000",
     "a batch needs 100000 training rows, but"),
    (f"look NUMBERS '{'one ' * 300}' a --out OUT", "the first text has"),
    ("look GPT c c --out OUT", "reads at most 1 text:"),
    ("few_shot FILES/nowhere GPT --task rte --out OUT", "no readable model.json"),
    ("few_shot GPT --task stsb --out OUT", "no prompt template exists for the task"),
    ("few_shot GPT --task rte rte --out OUT", "--task rte rte repeats a value"),
    ("few_shot GPT --task rte --shots -1 --out OUT", "--shots=-1"),
    ("export FILES OUT", "has no readable model.json"),
    ("export FILES/damaged OUT", "damaged"),
    ("export RUN OUT --n-best 2", "n_best=2 is not possible"),
    ("export T5 OUT --beam-size 2", "beam_size=2 is not possible"),
    ("compare OUT demo", "'demo' is the only arm: give a second arm"),
    ("compare OUT demo demo:a=b", "two arms are called demo: give them names"),
    ("compare OUT demo b=bert_tiny", "recipes of different kinds, translation and pretraining"),
    ("compare OUT elmo_tiny b=elmo_tiny", "recipes of kind 'elmo' cannot be compared"),
    ("ENCODERS b=bert_tiny:training.seed=2", "b sets training.seed, but --seeds sets"),
    ("ENCODERS b=bert_tiny:init=runs/a", "b sets init=runs/a, but bert_tiny is"),
    ("ENCODERS b=bert_tiny:objective.masking.rate=0.3", "0.3, bert_tiny 0.15: give --differ"),
    ("ENCODERS --corpus BERT/../corpus", "length"),
    ("ENCODERS --tuning-seeds 7", "--tuning-seeds has no effect without --rates"),
    ("ENCODERS --rates 1e-3 --tuning-seeds 2", "2 is in both --tuning-seeds and --seeds"),
    ("ENCODERS --rates 1e-3 --set training.learning_rate=1", "give --rates instead"),
    ("compare OUT a=finetune:sst2 b=finetune:sst2:init=runs/a", "a does not set init, the weights"),
    ("compare OUT a=finetune:sst2:init=r b=finetune:sst2:init=q --corpus c", "--corpus applies"),
    ("compare OUT a=runs/a --tasks b=bert", "no task is called 'b=bert'"),
    ("compare OUT a=runs/a --tasks rte finetune_bert:rte", "two arms are called a-rte: "),
    ("EQUAL one=demo b=demo:model.hidden_dim=512", "as many parameters as one ("),
    ("EQUAL one=demo b=demo:model.feed_forward_dim=9", "b sets model.feed_forward_dim, but"),
    ("TRANSLATE --set data.source=tsv:/nowhere/{split}.tsv", "/nowhere/validation.tsv"),
    ("TRANSLATE --set data.source=text:FILES/pairs,FILES/one.txt", "has fewer lines than"),
    ("TRANSLATE --set training.best_metric=foo", "training.best_metric is 'foo'"),
    ("TRANSLATE --set data.source=tsv:FILES/small_{split}.tsv --set data.vocabulary_size=24",
     "only 36 tokens"),
    ("TRANSLATE --set data.source=tsv:FILES/same_{split}.tsv --set data.vocabulary_size=26",
     "training.best_metric=bleu is 0 even if the model's output"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "error"),
    [*(pytest.param(*one, marks=pytest.mark.quick) for one in FINE_TUNING), *OTHERS],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(command, error, value, tmp_path, refused):
    first, _, rest = command.partition(" ")
    words = shlex.split(f"{FIRST.get(first, first)} {rest}")
    if words[0] == "TRAIN":
        begun = [word.replace("RUN", "OUT") for word in words_of(words[1], value)]
        words = [*begun, *words[2:]]
    names = rf"\b({'|'.join([*VALUES, 'OUT'])})\b"

    def place(match) -> str:
        return str(tmp_path / "out" if match[0] == "OUT" else value(VALUES[match[0]]))

    refused(main, [re.sub(names, place, word) for word in words], error, tmp_path)
