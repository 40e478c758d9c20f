"""Foreign weights: other libraries' models and vocabularies, read into ours.

`arrays` reads settings and arrays, and brings these into our variables by a table of names. The
tables, one for each family: `encoders` (BERT and its relatives of Hugging Face,
sentence-transformers), `language_models` (GPT, GPT-2, XLNet), `encoder_decoders` (T5, BART,
MarianMT, Pegasus), `keras_models` (KerasHub, Model Garden). `task_heads` reads and writes the
layers for a task over them.

All raise a UserError that names the file, setting or weight where a file is missing or damaged, or
where a part of theirs has no place in ours.
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
