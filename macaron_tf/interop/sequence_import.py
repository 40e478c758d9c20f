"""What the readers of other libraries' encoder-decoders have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.hugging_face import read_number
from macaron_tf.models.encoder_decoder import EncoderDecoder


class SequenceImport(NamedTuple):
    """A model and the meaning of its ids.

    Attributes:
        model: an `EncoderDecoder` that gives the same logits.
        ids: `(V',)` int, at each of our ids the one of theirs. Ours begin with PAD=0, UNK=1,
            BOS=2, EOS=3; BOS is their decoder's start token, which may be another one of these.
    """

    model: EncoderDecoder
    ids: np.ndarray


def order_of_ids(config: Mapping[str, Any], where: str, unknown: int | None = None) -> np.ndarray:
    """Their special ids at our places, then the others in their order.

    Args:
        config: the fields of the model's configuration.
        where: what a message calls it.
        unknown: their unknown token, where the configuration names none; None = the first id that
            is free, as in converted Marian vocabularies, </s> and <unk>, and in T5's.

    Raises:
        UserError: a field is missing or no whole number.
    """
    pad, start, eos = (
        read_number(config, f"{name}_token_id", int, where)
        for name in ("pad", "decoder_start", "eos")
    )
    if config.get("unk_token_id") is not None:
        unknown = read_number(config, "unk_token_id", int, where)
    if unknown is None:
        taken = {pad, start, eos}
        unknown = 1 if 1 not in taken else min(set(range(5)) - taken)
    special = [pad, unknown, start, eos]
    rest = np.setdiff1d(np.arange(read_number(config, "vocab_size", int, where)), special)
    return np.concatenate([special, rest])


def read_table(
    state: Mapping[str, np.ndarray], names: Sequence[str], ids: np.ndarray, where: str
) -> np.ndarray:
    """The rows of a table over their vocabulary, in the order of ours.

    Args:
        state: arrays by PyTorch's names.
        names: of the table, the first that there is: `save_pretrained` keeps one of the tied.
        ids: as of `order_of_ids`.
        where: what a message calls the configuration that the ids come from.

    Raises:
        UserError: there is none of them, or it has too few rows.
    """
    name = next((name for name in names if name in state), None)
    if name is None:
        raise UserError(f"the model has no {names[0]}.")
    table = np.asarray(state[name])
    if len(table) <= ids.max():
        raise UserError(f"{where} has ids up to {ids.max()} and {name} only {len(table)} rows.")
    return table[ids]
