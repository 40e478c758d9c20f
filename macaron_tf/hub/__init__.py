"""Conversion of other libraries' models to macaron_tf, and export to Hugging Face's format.

`families` has the names, settings, weights and heads of each family of models; families that
differ little share a file.
`encoders`, `language_models` and `encoder_decoders` read and write the three kinds of families.
`config` reads settings; `arrays` reads and writes weights by a mapping of weight names; `heads`
converts the heads of fine-tuned models; `tokenizers` reads and writes vocabularies;
`keras_models` and `keras_hub` are for KerasHub and Model Garden.

Every reader raises a UserError if a required file is missing, if a file is damaged, or if
macaron_tf has no counterpart for the model's layers or settings. The message names the file,
setting or weight.
"""

from macaron_tf.hub.hugging_face import read_hugging_face
from macaron_tf.hub.keras_models import import_keras_hub, read_model_garden_bert
from macaron_tf.models.model_parts import ModelParts
