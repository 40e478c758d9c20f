"""Rules for the encoder-decoders of another library: the reader and the writer of their folders."""

import dataclasses

import keras
import numpy as np

from macaron_tf import models, tasks
from macaron_tf.errors import UserError
from macaron_tf.hub import family
from macaron_tf.hub.arrays import Raw, Table, assign_weights, layer_state, padded_rows
from macaron_tf.hub.config import ends_of, id_tuple, json_bytes
from macaron_tf.hub.tokenizers.writing import sequence_tokenizer
from macaron_tf.layers.positions import SinusoidalPositions
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.special import Special
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.variables import spec_of

_MAX_NEW_TOKENS = 512  # maximum number of generated tokens, if the model has no limit
# Dict mapping a stack to its embeddings.
STACKS = {"encoder": "source_embeddings", "decoder": "target_embeddings"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceFamily(family.Family):
    """Conversion rules for one type of encoder-decoder, such as Hugging Face's "t5".

    Attributes:
        class_name: name of the model class with its output layer.
        starts: whether sources begin with BOS, and the decoder starts with EOS.
        appends_padding: whether a padding token after all others starts the decoder, whose
            embedding must be zero (see `_shift_start_to_zero`).
        saves_positions: whether a folder contains the sinusoidal positions.
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
    starts_with_padding: bool = False
    appends_padding: bool = False
    saves_positions: bool = False
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
        for part in self.body_prefixes:
            if not any(name.startswith(part) for name in arrays.arrays):
                lack = f"the weights of the {config.architecture or self.name} have no {part[:-1]}"
                raise UserError(f"{lack}, but only an encoder and its decoder can be read")
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
        """Converts an encoder-decoder to the files of a Hugging Face model.

        In MarianMT's sinusoidal positions, all sines precede the cosines. In macaron_tf's
        positions, sines and cosines alternate by default. The channels of all layers are then
        permuted, which changes no logit. MarianMT's decoder starts with the padding token, whose
        embedding must be zero; see `_shift_start_to_zero`.
        """
        model.require_head()
        config, special, rows = model.config, model.special, family.kept_rows(model)
        answer_start = _answer_start(model)
        is_own = special.rows is None and self.starts_with_padding
        # Only these tokenizers can add MarianMT's padding after all pieces.
        kinds = BytePairVocabulary | SentencePieceVocabulary | None
        pad_last = is_own and self.appends_padding and isinstance(model.vocabulary, kinds)
        if pad_last:
            rows = np.append(rows, special.begin)
            answer_start = (len(rows) - 1,)
        # The decoders of MarianMT and Pegasus start with padding.
        pad_id = answer_start[0] if is_own else special.pad
        token_ids = {
            "pad_token_id": pad_id,
            "bos_token_id": special.begin,
            "eos_token_id": special.end,
            "unk_token_id": special.unk,
            "decoder_start_token_id": answer_start[0],
            # BART's decoder starts with </s>, and its first output is forced to be <s>.
            "forced_bos_token_id": answer_start[1] if answer_start[1:] else None,
            "forced_eos_token_id": None,
        }
        default = {
            **{name: value for name, value in token_ids.items() if name != "unk_token_id"},
            "suppress_tokens": _suppressed_ids(model, {special.pad, pad_id, answer_start[0]}),
            "max_new_tokens": config.longest or _MAX_NEW_TOKENS,
        }
        files = {"generation_config.json": json_bytes(family.generation_of(model) or default)}
        state = self._state(model, rows)
        if pad_last:
            _shift_start_to_zero(state, config)
        if model.vocabulary:
            sentinels = special.sentinels or range(model.vocabulary.pieces, len(rows))
            tokenizer = sequence_tokenizer(
                model.vocabulary,
                config.longest,
                starts=bool(model.settings and model.settings.starts),
                sentinels=sentinels if model.card.sentinels else (),
                pad_last=pad_last,
                pads_with_start=is_own and not pad_last,
            )
            if self.starts_with_padding and "spiece.model" in tokenizer:
                # MarianMT's tokenizer reads two files, for source and target.
                model_file = tokenizer.pop("spiece.model")
                tokenizer |= dict.fromkeys(("source.spm", "target.spm"), model_file)
            files |= tokenizer
        is_translation = isinstance(model.settings, tasks.TranslationSettings)
        fields = self.written_fields(config, self.class_name, len(rows))
        return family.HuggingFaceFolder(
            config={**fields, **token_ids, "is_encoder_decoder": True},
            state=state,
            pipeline="translation" if is_translation else "text2text-generation",
            files=files,
        )

    def _state(self, model: ModelParts, rows: np.ndarray) -> dict[str, np.ndarray]:
        network, config = model.network, model.config
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
        state, width = {}, config.hidden_dim
        if self.saves_positions:
            zeros = np.zeros((1, config.max_length, width), "float32")
            sinusoids = keras.ops.convert_to_numpy(SinusoidalPositions("concatenated")(zeros)[0])
            state = {f"{stack}.embed_positions.weight": sinusoids for stack in STACKS}
        order = np.r_[0:width:2, 1:width:2]  # sines, then cosines

        def sines_first(variable: keras.Variable, array: np.ndarray) -> np.ndarray:
            axes = spec_of(variable).axes
            is_norm = axes == (None,) and len(array) == width
            if config.positions == "sinusoidal" and config.position_layout != "concatenated":
                for axis in (n for n, name in enumerate(axes) if name == "embed" or is_norm):
                    array = np.take(array, order, axis)
            return array

        if not self.output_kernel:  # transformers saves a bias of zeros, too
            state["final_logits_bias"] = np.zeros((1, len(rows)), "float32")
        state |= layer_state(network, table, convert=sines_first)
        heads = (self.output_kernel, "final_logits_bias")
        return {n if n in heads else self.prefix + n: array for n, array in state.items()}


def _answer_start(model: ModelParts) -> tuple[int, ...]:
    """Returns the ids that the decoder reads before an answer."""
    special, settings = model.special, model.settings
    if isinstance(settings, tasks.TextToTextSettings) and settings.starts:
        return special.end, special.begin
    ends = settings.ends if isinstance(settings, tasks.DecodingSettings) else {}
    return tuple(ends.get("answer_start", ())) or (special.begin,)


def _shift_start_to_zero(state: dict[str, np.ndarray], config: models.EncoderDecoderConfig) -> None:
    """Shifts all token embeddings in `state` so that the last token's embedding is zero.

    CTranslate2 starts MarianMT's decoder with a zero embedding. The shift subtracts a constant
    vector c from all inputs of the encoder and the decoder. The biases of the first self-attention
    restore c: the biases of queries, keys and values increase by W c, and the output bias increases
    by c, because the residual connection lost c too. All logits of a position change by the same
    number, so the probabilities stay equal.
    """
    table = state["model.shared.weight"].astype("float64")
    shift = table[-1]  # (D,)
    state["model.shared.weight"] = (table - shift).astype("float32")
    shift = shift * np.sqrt(config.hidden_dim)  # the model scales embeddings by sqrt(D)
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers.0.self_attn."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            addition = shift if part == "out_proj" else state[f"{prefix}{part}.weight"] @ shift
            name = f"{prefix}{part}.bias"
            state[name] = (state[name] + addition).astype("float32")


def _suppressed_ids(model: ModelParts, ids: set[int]) -> list[int]:
    """Returns the ids of the tokens that generation must never produce.

    A translation model, or a model without a vocabulary, suppresses `ids` and BOS. Any other model
    suppresses all special tokens except EOS. The first token that BART's decoder generates is never
    suppressed.
    """
    special = model.special
    ids = ids | {special.begin}
    if model.vocabulary and (
        model.card.objective or isinstance(model.settings, tasks.TextToTextSettings)
    ):
        ids |= {*special.ids}
    return sorted(ids - {special.end, *_answer_start(model)[1:]})
