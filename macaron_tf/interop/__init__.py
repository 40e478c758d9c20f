"""Reads models and vocabularies of other libraries, and writes ours in Hugging Face's format.

`arrays` reads settings and arrays, and assigns the arrays to our variables by a table of names. The
tables of each family are in `encoders` (Hugging Face's BERT and its relatives,
sentence-transformers), `language_models` (GPT, GPT-2, Llama, XLNet), `encoder_decoders` (T5, BART,
MarianMT, Pegasus) and `keras_models` (KerasHub, Model Garden). `task_heads` reads and writes the
heads of fine-tuned models.

All readers raise a UserError that names the file, setting or weight if a file is missing or
damaged, or if a part of the other model has no counterpart in this library's.
"""

from macaron_tf.interop.encoder_decoders import import_encoder_decoder, read_encoder_decoder
from macaron_tf.interop.encoders import read_encoder, read_sentence_transformer
from macaron_tf.interop.keras_models import (
    import_keras_hub_encoder,
    read_keras_hub,
    read_model_garden_bert,
)
from macaron_tf.interop.language_models import read_language_model, read_xlnet
from macaron_tf.pretrained import Pretrained
