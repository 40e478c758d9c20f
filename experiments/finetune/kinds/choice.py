"""Which of several choices goes with a text."""

from collections.abc import Sequence

from experiments.finetune.kinds.base import Limits, SpanLimits
from experiments.finetune.kinds.classification import Classification
from macaron_tf.data.tasks.encoding import encode_choices
from macaron_tf.data.tasks.reading import TextSets, read_choices
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import score
from macaron_tf.models import CausalChooser


class Choice(Classification):
    """Tasks of RACE's kind. Outputs are logits `(N, R)`, one of each choice."""

    @property
    def answer(self) -> str:
        return f"one of the choices {' '.join(self.task.labels)}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.task.second),)

    def read(self, split, data_dir, download, source) -> TextSets:
        return read_choices(self.task, split, data_dir, download, source)

    def of_texts(self, *columns: Sequence[str]) -> TextSets:
        return TextSets(tuple(map(list, columns)), None)

    def parse(self, lines: list[str], first: int) -> TextSets:
        rows = [line.split("\t") for line in lines]
        wanted = 1 + len(self.task.second)
        for number, row in enumerate(rows, first):
            if len(row) != wanted:
                raise UserError(
                    f"line {number}: {len(row)} columns, not {wanted}: {self.task.name} has a text "
                    f"and {wanted - 1} choices, separate them by one tab each"
                )
        return self.of_texts(*([row[place] for row in rows] for place in range(wanted)))

    def least_length(self, spans: SpanLimits) -> int:
        return 5

    def encode(self, vocabulary, examples: TextSets, limits: Limits, progress=None):
        return encode_choices(vocabulary, examples, limits.max_length, progress, limits.causal)

    def network(self, config, head_dropout, policy) -> CausalChooser:
        if not config.causal:
            raise UserError(
                f"{self.task.name} is about choices, which only a causal model is fine-tuned on "
                "here: give --init a run of one, such as gpt_tiny's"
            )
        return CausalChooser(config, head_dropout, dtype=policy)

    def score(self, predictions, examples: TextSets) -> dict[str, float]:
        return score(self.task, predictions, examples.labels)

    def baseline(self, train: TextSets) -> None:
        return None
