// The library's operations, for TensorFlow on CPUs.
//
// Their names carry a namespace, so that `tf.saved_model.save` with a `namespace_whitelist` refuses
// them: a server has no library of ours.

#include "cross_entropy_ops.h"
#include "dropout_ops.h"
#include "gelu_ops.h"
#include "layer_norm_ops.h"
#include "swish_ops.h"
