"""Rules for the encoder-decoders of another library: the reader and the writer of their folders."""

import dataclasses

import numpy as np

from macaron_tf import models, tasks
from macaron_tf.hub import family
from macaron_tf.hub.arrays import Raw, Table, assign_weights, layer_state, padded_rows
from macaron_tf.hub.config import ends_of, id_tuple, json_bytes
from macaron_tf.hub.tokenizers.writing import sequence_tokenizer
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.special import Special

_MAX_NEW_TOKENS = 512  # maximum number of generated tokens, if the model has no limit
# Dict mapping a stack to its embeddings.
STACKS = {"encoder": "source_embeddings", "decoder": "target_embeddings"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceFamily(family.Family):
    """Conversion rules for one type of encoder-decoder, such as Hugging Face's "t5".

    Attributes:
        class_name: name of the model class with its output layer.
        starts: whether sources begin with BOS, and the decoder starts with EOS.
        output_kernel: name of the output layer's kernel, which may differ from the token
            embeddings. Without a name, the two are equal.
    """

    networks = (models.EncoderDecoder,)
    config_class = models.EncoderDecoderConfig
    objective: str | None = None
    class_name: str
    tokenizer_files: tuple[str, ...] = ("spiece.model", "vocab.json", "tokenizer.json")
    starts: bool = False
    gated_table: Table = dataclasses.field(default_factory=dict)
    output_kernel: str = ""

    def read(self, folder: family.ModelFolder) -> ModelParts:
        config, arrays, missing = folder.config, self.arrays(folder), ""
        settings, tokens = self.read_settings(config), arrays.array(*self.tokens)
        generation, field = config.generation(folder.path), "decoder_start_token_id"
        vocabulary, start = self.vocabulary(folder), generation.get(field, config.get(field))
        if vocabulary and not self.starts and start is not None:
            vocabulary.special = dataclasses.replace(vocabulary.special, begin=start)
        # Of a model whose tokenizer is not read.
        pad_id, begin = map(config.number, ("pad_token_id", field))
        end, *_ = id_tuple(config.get("eos_token_id")) or (config.number("eos_token_id"),)
        special = Special(pad_id, config.get("unk_token_id"), begin, end, rows=len(tokens))
        special = family.fitted(vocabulary, special, tokens)
        size = vocabulary.size if vocabulary else len(tokens)
        # Rows without a token are copies of the padding, whose probability is almost 0.
        pad = padded_rows(size, fill_row=special.pad)
        tokens = pad(tokens)
        table = {**self.table, "embedding/table": tokens}
        if settings.get("gated"):
            table |= self.gated_table
        if self.output_kernel:
            has_output = arrays.has(self.output_kernel)
            output = pad(arrays.array(self.output_kernel)) if has_output else tokens
            # A T5 1.1 without its output matrix may be saved with tie_word_embeddings=True.
            is_whole = config.architecture.endswith(family.LANGUAGE_CLASSES)
            tied = settings["scaled_logits"] or is_whole
            if not has_output and not (tied and config.get("tie_word_embeddings", True)):
                missing = self.output_kernel
            settings["tied"] = np.array_equal(output, tokens)
            table["output_projection/kernel"] = output.T
        else:
            bias = pad(np.ravel(arrays.arrays.get("final_logits_bias", np.zeros(len(tokens)))))
            settings["logits_bias"] = bool(np.any(bias))
            table["logits_bias"] = bias
        ids = {"pad_id": special.pad, "begin_id": special.begin, "end_id": special.end}
        network = family.build_model(models.EncoderDecoder, {"vocab_size": size, **ids, **settings})
        assign_weights(network, arrays, table)
        ends = ends_of(generation, special)
        if self.starts and vocabulary and start != special.begin:
            # The encoder reads <s> text </s>, and the decoder starts with </s>, which most models
            # force <s> to follow.
            forced = id_tuple(generation.get("forced_bos_token_id"))
            ends |= {"source_start": (special.begin,), "answer_start": (start, *forced)}
        card = Card(
            model=self.catalog,
            objective=self.objective,
            special=special,
            unread=self.check_unread(arrays),
            missing_head=missing,
            sentinels=len(special.sentinels),
        )
        settings_class = tasks.ContinuationSettings if self.objective else tasks.TranslationSettings
        return ModelParts(
            network, vocabulary, settings_class(ends=ends, generation=generation), card
        )

    def missing_part(self, model: ModelParts) -> str:
        return "logits_bias=True" if self.output_kernel and model.config.logits_bias else ""

    def write(self, model: ModelParts) -> family.HuggingFaceFolder:
        """Converts an encoder-decoder to the files of a Hugging Face model."""
        model.require_head()
        config, special, rows = model.config, model.special, family.kept_rows(model)
        answer_start = _answer_start(model)
        token_ids = {
            "pad_token_id": special.pad,
            "bos_token_id": special.begin,
            "eos_token_id": special.end,
            "unk_token_id": special.unk,
            "decoder_start_token_id": answer_start[0],
            # BART's decoder starts with </s>, and its first output is forced to be <s>.
            "forced_bos_token_id": answer_start[1] if answer_start[1:] else None,
            "forced_eos_token_id": None,
        }
        # Generation never produces a special token except EOS and BART's first one, but a
        # translator may answer UNK.
        is_free = model.card.objective or isinstance(model.settings, tasks.TextToTextSettings)
        barred = {*special.ids} if model.vocabulary and is_free else {special.pad, special.begin}
        default = {
            **{name: value for name, value in token_ids.items() if name != "unk_token_id"},
            "suppress_tokens": sorted(barred - {special.end, *answer_start[1:]}),
            "max_new_tokens": config.longest or _MAX_NEW_TOKENS,
        }
        files = {"generation_config.json": json_bytes(family.generation_of(model) or default)}
        if model.vocabulary:
            sentinels = special.sentinels or range(model.vocabulary.pieces, len(rows))
            files |= sequence_tokenizer(
                model.vocabulary,
                config.longest,
                starts=bool(model.settings and model.settings.starts),
                sentinels=sentinels if model.card.sentinels else (),
            )
        is_translation = isinstance(model.settings, tasks.TranslationSettings)
        fields = self.written_fields(config, self.class_name, len(rows))
        return family.HuggingFaceFolder(
            config={**fields, **token_ids, "is_encoder_decoder": True},
            state=self._state(model, rows),
            pipeline="translation" if is_translation else "text2text-generation",
            files=files,
        )

    def _state(self, model: ModelParts, rows: np.ndarray) -> dict[str, np.ndarray]:
        config = model.config
        table = {
            **self.table,
            **(self.gated_table if config.gated else {}),
            "embedding/table": Raw(self.tokens[0], inverse=lambda table: table[rows]),
            "output_projection/kernel": Raw(self.output_kernel, inverse=lambda w: w.T[rows]),
            "logits_bias": Raw("final_logits_bias", inverse=lambda bias: bias[rows][None]),
        }
        before = self.fixed_settings.get("position_offset", 0) - config.position_offset
        for stack, embeddings in STACKS.items():
            table[f"{embeddings}/positions/table"] = Raw(
                f"{stack}.embed_positions.weight",
                inverse=lambda positions: np.pad(positions, ((before, 0), (0, 0))),
            )
        state = layer_state(model.network, table)
        if not self.output_kernel:  # transformers saves a bias of zeros, too
            state.setdefault("final_logits_bias", np.zeros((1, len(rows)), "float32"))
        heads = (self.output_kernel, "final_logits_bias")
        return {n if n in heads else self.prefix + n: array for n, array in state.items()}


def _answer_start(model: ModelParts) -> tuple[int, ...]:
    """Returns the ids that the decoder reads before an answer."""
    special, settings = model.special, model.settings
    if isinstance(settings, tasks.TextToTextSettings) and settings.starts:
        return special.end, special.begin
    ends = settings.ends if isinstance(settings, tasks.DecodingSettings) else {}
    return tuple(ends.get("answer_start", ())) or (special.begin,)
