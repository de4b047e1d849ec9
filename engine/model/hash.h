/* hash.h: the hash that names a model's contents. Internal to engine/model. */
#ifndef KVF_HASH_H
#define KVF_HASH_H

#include "engine/model/weightset.h"

/* SHA-256 over config.json and the weight files in name order; each as its name with the final NUL, its length as 8
 * little-endian bytes, and its contents. hex[65]. */
KVF_MUSTCHECK int hash_files(const char *folder, const struct weight_names *weights, char *hex, struct kvf_err *err);

#endif
