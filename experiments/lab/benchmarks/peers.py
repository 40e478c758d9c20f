"""Models of transformers and CTranslate2 with random weights, for the decoding benchmarks."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.lab.benchmarks.harness import set_threads
from macaron_tf.errors import needed
from macaron_tf.hub.families import FAMILIES
from macaron_tf.model import Model
from macaron_tf.models import LanguageModel, catalog
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.special import Special
from macaron_tf.text.byte_pairs import BYTE_ALPHABET, BytePairVocabulary

# Weight types of CTranslate2.
COMPUTE_TYPES = ("float32", "int8")
# Standard deviations of the matrices and the embeddings in `marian`.
MATRIX_STD, EMBEDDING_STD = 0.03, 0.2


def set_up(threads: int, inter_op_threads: int | None = None) -> None:
    """Sets the number of threads of PyTorch and TensorFlow."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # All models have random weights, so transformers downloads no files.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with needed("the benchmark", "-r requirements/peers.txt, as `make bench` does"):
        import torch
        import transformers  # noqa: F401

    torch.set_num_threads(threads)
    set_threads(threads, inter_op_threads)


def generate(peer: Any, rows: np.ndarray, count: int, **options: Any) -> np.ndarray:
    """Generates `count` tokens by transformers per source or prompt: `(B, P) -> (B, count)`."""
    import torch

    ids = torch.from_numpy(rows.astype(np.int64))
    with torch.inference_mode():
        token_ids = peer.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            **options,
        )
    return token_ids[:, -count:].numpy()


def marian(config: EncoderDecoderConfig) -> Any:
    """Makes a MarianMTModel of transformers, whose random weights lead to varied outputs.

    With the usual initial weights, the model repeats one token, so equal outputs of two libraries
    would prove little. Therefore the embeddings are large. The next token then depends more on the
    last token than on the position. The weights of the last LayerNorm in the decoder have random
    signs. The tied output matrix then does not favour the last token.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    special = Special()
    peer_config = transformers.MarianConfig(
        vocab_size=config.vocab_size,
        **FAMILIES["marian"].fields(config),
        pad_token_id=special.pad,
        decoder_start_token_id=special.begin,
        eos_token_id=special.end,
        forced_eos_token_id=special.end,
        init_std=MATRIX_STD,
    )
    peer = transformers.MarianMTModel(peer_config).eval()
    with torch.no_grad():
        peer.model.shared.weight.mul_(EMBEDDING_STD / MATRIX_STD)
        signs = peer.model.decoder.layers[-1].final_layer_norm.weight
        signs.copy_(torch.randn_like(signs).sign())
    return peer


def gpt2(size: str) -> Model:
    """Makes a GPT-2 of this library with random weights."""
    letters, name = sorted(BYTE_ALPHABET), f"gpt2_{size}"
    count = catalog.config(name).vocab_size - len(letters) - len(Special().ids)
    pairs = list(itertools.islice(itertools.product(letters, repeat=2), count))
    pieces = [*letters, *map("".join, pairs)]
    vocabulary = BytePairVocabulary(pieces, [*map(" ".join, pairs)])
    network = LanguageModel(catalog.config(name, vocab_size=vocabulary.size))
    network.build()
    return Model(network, vocabulary)


def _in_ctranslate2(runner_class: type, spec: Any, threads: int, compute_type: str) -> Any:
    """Loads the output `spec` of a converter into CTranslate2."""
    spec.validate()
    with tempfile.TemporaryDirectory() as directory:
        spec.save(directory)
        return runner_class(
            directory, compute_type=compute_type, inter_threads=1, intra_threads=threads
        )


def _tokens(rows: Iterable[Iterable[int]]) -> list[list[str]]:
    """Converts ids to strings such as "17", which serve as subword tokens in CTranslate2."""
    return [[str(i) for i in row] for row in rows]


def ctranslate2_translator(
    peer: Any, threads: int, compute_type: str, count: int, beam_size: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a beam search in CTranslate2, `(B, S) -> (B, count)`. The outputs have no EOS."""
    from ctranslate2 import Translator
    from ctranslate2.converters.transformers import BartLoader

    # The MarianMT converter needs tokenizer files and Marian's padding id, so the BART converter is
    # used. The network equals BART without the LayerNorm after the embeddings.
    config, special = peer.config, Special()
    config.normalize_before = config.normalize_embedding = False
    spec = BartLoader().get_model_spec(peer)
    [names] = _tokens([range(config.vocab_size)])
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = names[special.begin]
    spec.config.eos_token, spec.config.unk_token = names[special.end], names[special.unk]
    spec.config.add_source_eos = spec.config.add_source_bos = False
    translator = _in_ctranslate2(Translator, spec, threads, compute_type)
    limits = {"min_decoding_length": count, "max_decoding_length": count}

    def translate(source: np.ndarray) -> np.ndarray:
        results = translator.translate_batch(
            _tokens(source), beam_size=beam_size, length_penalty=0.0, **limits
        )
        return np.array([[int(token) for token in result.hypotheses[0]] for result in results])

    return translate


def ctranslate2_generator(
    peer: Any, threads: int, compute_type: str, count: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns greedy decoding in CTranslate2, `(B, P) -> (B, count)`."""
    from ctranslate2 import Generator
    from ctranslate2.converters.transformers import GPT2Loader

    spec, special = GPT2Loader().get_model_spec(peer), Special()
    [names] = _tokens([range(peer.config.vocab_size)])
    spec.register_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token = names[special.begin], names[special.end]
    spec.config.unk_token = names[special.unk]
    generator = _in_ctranslate2(Generator, spec, threads, compute_type)
    options = {"min_length": count, "max_length": count, "include_prompt_in_result": False}

    def generate(rows: np.ndarray) -> np.ndarray:
        results = generator.generate_batch(_tokens(rows), **options)
        return np.array([result.sequences_ids[0] for result in results])

    return generate
