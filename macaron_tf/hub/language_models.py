"""Rules for the language models of another library: the reader and the writer of their folders.

Transformer-XL is not supported, because transformers no longer contains Transformer-XL.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf import models
from macaron_tf.hub import family
from macaron_tf.hub.arrays import Arrays, Raw, assign_weights, layer_state, padded_rows
from macaron_tf.hub.config import ends_of, id_tuple, json_bytes
from macaron_tf.hub.heads import ReadHead
from macaron_tf.hub.tokenizers.reading import read_language_vocabulary
from macaron_tf.hub.tokenizers.writing import language_tokenizer
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.special import SPECIAL, Special
from macaron_tf.tasks import ContinuationSettings
from macaron_tf.text import PieceVocabulary

# Settings of every language model.
CAUSAL = {"causal": True, "num_segments": 0, "embedding_norm": False, "output_bias": True}
# The kernel of a classifier on a language model, which has no bias.
SCORE = Raw("score.weight", transform=np.transpose, inverse=np.transpose)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageFamily(family.Family):
    """Conversion rules for one type of language model, such as Hugging Face's "gpt2".

    [CLS] begins a text, and [SEP] ends a text. In GPT-2, both are the end-of-text token. A special
    token that the model lacks has an id after all tokens, and the model never predicts it. For
    example, OpenAI's GPT has only UNK.

    Attributes:
        language_class: suffix of the class name of the model with its output layer.
        bias, output_kernel: names of the output layer's bias and kernel. Most models have no bias.
    """

    networks = (models.LanguageModel,)
    tokenizer_files: tuple[str, ...] = ("vocab.json", "tokenizer.json", "tokenizer.model")
    language_class: str
    bias: str = ""
    output_kernel: str = ""

    def read(self, folder: family.ModelFolder) -> ModelParts:
        config, arrays = folder.config, self.arrays(folder)
        settings = self.read_settings(config)
        tokens = arrays.array(*self.tokens)  # (V', D)
        ends = [*id_tuple(config.get("eos_token_id")), len(tokens) + 1]
        start = config.number("bos_token_id", ends[0])
        pad = config.number("pad_token_id", len(tokens)) if self.bias else len(tokens)
        special = Special(pad, None, start, ends[0], rows=len(tokens))
        vocabulary, starts = None, False
        if folder.has(*self.tokenizer_files):
            vocabulary, starts = read_language_vocabulary(folder.path)
        head = self.find_head(config, arrays, settings)
        model = self.convert(arrays, settings, vocabulary, special, head)
        if not head:
            generation = config.generation(folder.path)
            ends = ends_of(generation, model.special)
            settings = ContinuationSettings(ends=ends, generation=generation)
            model = dataclasses.replace(model, settings=settings)
        return model.with_card(starts=starts)

    def convert(
        self,
        arrays: Arrays,
        settings: Mapping[str, Any],
        vocabulary: PieceVocabulary | None,
        special: Special = SPECIAL,
        task_head: ReadHead | None = None,
    ) -> ModelParts:
        """Converts another library's language model to a macaron_tf model.

        Args:
            settings: fields of an `EncoderConfig` except `vocab_size`.
            special: ids of the special tokens if there is no vocabulary.
            task_head: task head of a fine-tuned model. `None` means that the model is converted
                with its output layer instead.
        """
        tokens = arrays.array(*self.tokens)  # (V', D)
        special = family.fitted(vocabulary, special, tokens)
        size = special.size
        bias = arrays.array(self.bias) if arrays.has(self.bias) else np.zeros(len(tokens))
        table = {
            **self.table,
            "tokens/table": padded_rows(size)(tokens),
            # GPT-2's logits of tokens are far below 0, which would be the logit of an unused row.
            "language_head/bias": padded_rows(size, is_bias=True)(bias),
        }
        head = task_head or ReadHead(models.LanguageModel, {}, {})
        missing, random_layers, is_tied = "", [], settings.get("tied", True)
        if not is_tied:
            table["output_table/table"] = Raw(self.output_kernel, transform=padded_rows(size))
            if not arrays.has(self.output_kernel):
                random_layers.append("output_table")
                missing = "" if task_head else self.output_kernel
        if task_head:
            bias = np.zeros(head.options["num_classes"], "float32")
            table |= {**head.table, "head/dense/bias": bias}
            random_layers.append("language_head/projection")  # a classifier has no output layer
        settings = {**settings, "vocab_size": size, "pad_id": special.pad}
        network = family.build_model(head.network_class, settings, **head.options)
        assign_weights(network, arrays, table, random_layers)
        unread = self.check_unread(arrays, self.output_kernel if is_tied else "")
        card = Card(model=self.catalog, special=special, unread=unread, missing_head=missing)
        return ModelParts(network, vocabulary, head.settings, card)

    def missing_part(self, model: ModelParts) -> str:
        rows = family.kept_rows(model)
        is_predicted = rows != model.special.begin  # [CLS] is never predicted
        has_bias = np.any(_output_bias(model, rows)[is_predicted])
        return "an output bias" if has_bias and not self.bias else ""

    def write(self, model: ModelParts) -> family.HuggingFaceFolder:
        """Converts a language model to the files of a Hugging Face model."""
        model.require_head()
        head, config, special = model.network.language_head, model.config, model.special
        rows, notes, fields = family.kept_rows(model), [], {}
        bias = _output_bias(model, rows)  # left out if all of it is 0
        token_ids = {"pad": special.pad, "bos": special.begin, "eos": special.end}
        if not model.card.starts and special.rows is None:
            del token_ids["bos"]
        token_ids = {f"{role}_token_id": n for role, n in token_ids.items() if n < len(rows)}
        tokens = Raw(self.tokens[0], inverse=lambda table: table[rows])
        table = {**self.table, "tokens/table": tokens}
        state = layer_state(model.encoder, table, self.prefix, self.transpose_kernels)
        if head.projection:
            state |= layer_state(head.projection, self.table)
        if head.output_table:
            output_table = head.output_table.matrix("float32")
            state[self.output_kernel] = keras.ops.convert_to_numpy(output_table)[rows]
        if self.bias:
            fields["output_bias"] = bool(bias.any())
            if bias.any():
                notes.append("the output bias needs our PyTorch file: GPT-2 and Llama have none")
                state[self.bias] = bias
        # Generation never produces a special token except [SEP].
        ids = {*special.ids} if model.vocabulary else {special.pad, special.begin}
        ids = sorted(token_id for token_id in ids - {special.end} if token_id < len(rows))
        default = {**token_ids, **({"suppress_tokens": ids} if ids else {})}
        files = {"generation_config.json": json_bytes(family.generation_of(model) or default)}
        if vocabulary := model.vocabulary:
            files |= language_tokenizer(vocabulary, config.longest, model.card.starts)
        written = self.written_fields(config, self.class_name(self.language_class), len(rows))
        return family.HuggingFaceFolder(
            config={**written, **token_ids, **fields},
            state=state,
            pipeline="text-generation",
            files=files,
            notes=tuple(notes),
        )


def _output_bias(model: ModelParts, rows: np.ndarray) -> np.ndarray:
    """Returns the output bias of the tokens in `rows`: zeros if there is no such bias."""
    bias = model.network.language_head.bias
    return np.zeros(len(rows), "float32") if bias is None else np.asarray(bias)[rows]
