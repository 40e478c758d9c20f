"""The peers of the decoding benchmark: one random MarianMT model in their hands and in ours."""

import os
import tempfile
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop import import_encoder_decoder
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.special_ids import BOS, EOS, PAD, UNK


def require_peers() -> None:
    """Raises a UserError where PyTorch or transformers is missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the peers are not installed ({error.name} is missing): run `make bench`, or "
            "`pip install -r experiments/benchmarks/requirements.txt` beside requirements.txt."
        ) from None


class HuggingFacePeer:
    """A MarianMTModel of random weights, decoded by `generate`.

    Args:
        config: the shape; its block and norm are Marian's own, a post-norm Transformer.
        threads: PyTorch's, within an operation.
    """

    def __init__(self, config: EncoderDecoderConfig, threads: int):
        import torch
        import transformers

        # No reaching out for files: the model is made here.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._torch = torch
        settings = transformers.MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.hidden_dim,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.feed_forward_dim,
            decoder_ffn_dim=config.feed_forward_dim,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            decoder_start_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
        )
        self.model = transformers.MarianMTModel(settings).eval()

    def our_model(self) -> EncoderDecoder:
        """Our encoder-decoder with the same weights."""
        state = {name: value.numpy() for name, value in self.model.state_dict().items()}
        return import_encoder_decoder(state, self.model.config.to_dict()).network

    def decode(self, source: np.ndarray, beam_size: int, length: int, **options: Any) -> np.ndarray:
        """The best output of exactly `length` tokens, the last an EOS: `(B, S) -> (B, length)`."""
        ids = self._torch.from_numpy(source.astype(np.int64))
        with self._torch.inference_mode():
            found = self.model.generate(
                input_ids=ids,
                attention_mask=self._torch.ones_like(ids),
                num_beams=beam_size,
                do_sample=False,
                length_penalty=0.0,
                min_new_tokens=length,
                max_new_tokens=length,
                **options,
            )
        return found[:, 1:].numpy()


class CTranslate2Peer:
    """The same model in CTranslate2, in float32.

    Args:
        peer: whose weights to convert.
        threads: within an operation.
    """

    def __init__(self, peer: HuggingFacePeer, threads: int):
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader

        # The converter's MarianMT class wants a tokenizer's files and Marian's own padding id;
        # the network is BART's, without the LayerNorm after the embeddings.
        config = peer.model.config
        config.normalize_before = config.normalize_embedding = False
        spec = BartLoader().get_model_spec(peer.model)
        names = [str(i) for i in range(config.vocab_size)]
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.config.bos_token = spec.config.decoder_start_token = names[BOS]
        spec.config.eos_token, spec.config.unk_token = names[EOS], names[UNK]
        spec.config.add_source_eos = spec.config.add_source_bos = False
        spec.validate()
        with tempfile.TemporaryDirectory() as directory:
            spec.save(directory)
            self._translator = ctranslate2.Translator(
                directory, compute_type="float32", inter_threads=1, intra_threads=threads
            )

    def decode(self, source: np.ndarray, beam_size: int, length: int) -> np.ndarray:
        """As `HuggingFacePeer.decode`, but its EOS is not returned."""
        found = self._translator.translate_batch(
            [[str(i) for i in row] for row in source],
            beam_size=beam_size,
            length_penalty=0.0,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return np.array([[int(token) for token in one.hypotheses[0]] for one in found])
