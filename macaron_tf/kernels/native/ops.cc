// The library's operations, for TensorFlow on CPUs.
//
// The names of the operations have a namespace. `tf.saved_model.save` with a `namespace_whitelist`
// therefore rejects graphs with these operations, which a server could not load.

#include "cross_entropy_ops.h"
#include "dropout_ops.h"
#include "gelu_ops.h"
#include "layer_norm_ops.h"
#include "swish_ops.h"
