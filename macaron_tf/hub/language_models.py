"""Rules for the language models of another library: the reader and the writer of their folders.

Transformer-XL is not supported, because transformers no longer contains Transformer-XL.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf import models
from macaron_tf.errors import UserError
from macaron_tf.hub import family
from macaron_tf.hub.arrays import Arrays, Raw, assign_weights, layer_state, padded_rows
from macaron_tf.hub.config import ends_of, id_tuple, json_bytes
from macaron_tf.hub.heads import ReadHead, head_state, unstandardized_weights
from macaron_tf.hub.tokenizers.reading import read_language_vocabulary
from macaron_tf.hub.tokenizers.writing import language_tokenizer
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.special import SPECIAL, Special
from macaron_tf.tasks import ContinuationSettings, LabelledSettings
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
        last_norm: name of the last norm, with `{}` for the index of the last layer. An empty string
            means that the classifier's head has a bias.
        language_class: suffix of the class name of the model with its output layer.
        bias, output_kernel: names of the output layer's bias and kernel. Most models have no bias.
    """

    networks = (models.LanguageModel, models.CausalClassifier)
    tokenizer_files: tuple[str, ...] = ("vocab.json", "tokenizer.json", "tokenizer.model")
    last_norm: str
    language_class: str
    bias: str = ""
    output_kernel: str = ""

    def read(self, folder: family.ModelFolder) -> ModelParts:
        config, has_task = folder.config, folder.has_task
        settings, arrays = self.read_settings(config), self.arrays(folder)
        tokens = arrays.array(*self.tokens)  # (V', D)
        ends = [*id_tuple(config.get("eos_token_id")), len(tokens) + 1]
        start = config.number("bos_token_id", ends[0])
        pad = config.number("pad_token_id", len(tokens)) if self.bias else len(tokens)
        special = Special(pad, None, start, ends[0], rows=len(tokens))
        vocabulary, starts, unread_tokenizer = folder.vocabulary, False, ""
        if vocabulary:
            starts = vocabulary.starts
        else:
            try:
                vocabulary, starts = read_language_vocabulary(folder.path)
            except UserError as error:
                unread_tokenizer = str(error)
                if folder.has(*self.tokenizer_files):
                    print(f"note: the tokenizer is not read, because {error}", file=sys.stderr)
        # A model that macaron_tf exported has special tokens around a text, the last [MASK].
        has_special = vocabulary is not None and vocabulary.special.mask < vocabulary.pieces
        head = self.find_head(config, arrays, settings, has_special) if has_task else None
        model = self.convert(arrays, settings, vocabulary, special, head)
        generation = {} if head else config.generation(folder.path)
        if not head:
            settings = ContinuationSettings(
                ends=ends_of(generation, model.special), generation=generation
            )
            model = dataclasses.replace(model, settings=settings)
        return model.with_card(unread_tokenizer=unread_tokenizer, starts=starts)

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
            table |= {**head.table, "head/dense/bias": bias}  # the head may name a bias itself
            random_layers.append("language_head/projection")  # a classifier has no output layer
        settings = {**settings, "vocab_size": size, "pad_id": special.pad}
        network = family.build_model(head.network_class, settings, **head.options)
        assign_weights(network, arrays, table, random_layers)
        unread = self.check_unread(arrays, self.output_kernel if is_tied else "")
        card = Card(
            model=self.catalog,
            special=special,
            unread=unread,
            missing_head=missing,
            results=head.results,
        )
        return ModelParts(network, vocabulary, head.settings, card)

    def missing_part(self, model: ModelParts) -> str:
        if isinstance(model.network, models.CausalClassifier):
            if model.network.symmetric:  # reads pairs in both orders
                return "symmetric=True"
            lacks_bias = self.last_norm and self._norm_offset(model) is None
            return "the bias of the classifier's head" if lacks_bias else ""
        rows = family.kept_rows(model)
        is_predicted = rows != model.special.begin  # [CLS] is never predicted
        has_bias = np.any(_output_bias(model, rows)[is_predicted])
        return "an output bias" if has_bias and not self.bias else ""

    def write(self, model: ModelParts) -> family.HuggingFaceFolder:
        """Converts a language model or its classifier to the files of a Hugging Face model."""
        model.require_head()
        network, config, special = model.network, model.config, model.special
        notes, is_classifier = [], isinstance(network, models.CausalClassifier)
        rows = family.kept_rows(model)
        bias = _output_bias(model, rows)  # left out if all of it is 0
        # Whether the model is a classifier that reads special tokens around each text.
        labelled = model.settings if isinstance(model.settings, LabelledSettings) else None
        is_framed = is_classifier and (labelled is None or labelled.limits.special)
        if is_framed:  # the classifier reads special tokens, even if the checkpoint lacked them
            rows = np.arange(max(len(rows), *(token_id + 1 for token_id in special.ids)))
        token_ids = {"pad": special.pad, "bos": special.begin, "eos": special.end}
        if not model.card.starts and special.rows is None:
            del token_ids["bos"]
        if is_classifier and special.pad >= len(rows):
            token_ids["pad"] = special.end  # the classifier reads the last other token
        token_ids = {f"{role}_token_id": n for role, n in token_ids.items() if n < len(rows)}
        tokens = Raw(self.tokens[0], inverse=lambda table: table[rows])
        table = {**self.table, "tokens/table": tokens}
        state = layer_state(network.encoder, table, self.prefix, self.transpose_kernels)
        suffix, pipeline, fields, files = self.language_class, "text-generation", {}, {}
        if is_classifier:
            head = self.tasks[models.CausalClassifier]
            if self.last_norm:
                state["score.weight"] = unstandardized_weights(model)[0].T
                norm = f"{self.prefix}{self.last_norm.format(config.num_layers - 1)}.bias"
                if norm in state:
                    state[norm] = (state[norm] + self._norm_offset(model)).astype("float32")
            else:
                state |= head_state(model, head.table)
            suffix, pipeline = head.class_suffix, head.pipeline
            fields = self.head_fields(model)
            if is_framed:
                notes.append("the tokenizer adds [CLS] before a text and [MASK] after the text")
        else:
            head = network.language_head
            if head.projection:
                state |= layer_state(head.projection, self.table)
            if head.output_table:
                output_table = head.output_table.matrix("float32")
                state[self.output_kernel] = keras.ops.convert_to_numpy(output_table)[rows]
            if self.bias and bias.any():
                notes.append("the output bias needs our PyTorch file: GPT-2 and Llama have none")
                state[self.bias] = bias
            # Generation never produces a special token except [SEP].
            ids = {*special.ids} if model.vocabulary else {special.pad, special.begin}
            ids = sorted(token_id for token_id in ids - {special.end} if token_id < len(rows))
            default = {**token_ids, **({"suppress_tokens": ids} if ids else {})}
            files = {"generation_config.json": json_bytes(family.generation_of(model) or default)}
        if self.bias:
            fields["output_bias"] = bool(bias.any())
        if vocabulary := model.vocabulary:
            files |= language_tokenizer(vocabulary, config.longest, model.card.starts, is_framed)
        written = self.written_fields(config, self.class_name(suffix), len(rows))
        return family.HuggingFaceFolder(
            config={**written, **token_ids, **fields},
            state=state,
            pipeline=pipeline,
            files=files,
            notes=tuple(notes),
        )

    def _norm_offset(self, model: ModelParts) -> np.ndarray | None:
        """Returns what to add to the bias of the last norm instead of the bias of the head.

        The last layer of a macaron_tf classifier has a bias, but the last layer of Hugging Face's
        classifier has no bias. The result is the shortest vector that the kernel maps to the bias,
        or `None` if there is no such vector: a norm has no bias in Llama, and the scores of the
        classes may be linearly dependent.
        """
        kernel, bias = (value.astype("float64") for value in unstandardized_weights(model))
        is_biased = model.config.norm_type == "layer"
        offset = np.linalg.pinv(kernel.T) @ bias * is_biased
        return offset if np.allclose(offset @ kernel, bias, atol=1e-6) else None


def _output_bias(model: ModelParts, rows: np.ndarray) -> np.ndarray:
    """Returns the output bias of the tokens in `rows`: zeros if there is no such bias."""
    network = model.network
    if isinstance(network, models.CausalClassifier) or network.language_head.bias is None:
        return np.zeros(len(rows), "float32")
    return keras.ops.convert_to_numpy(network.language_head.bias)[rows]
