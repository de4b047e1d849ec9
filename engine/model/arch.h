/* arch.h: the architectures that can be loaded, a row each in arch.c. Internal to engine/model.
 *
 * A row says which tensors a model of this class has: their names, the field of struct model or struct model_layer that
 * they fill, their shape in terms of the config, and when they exist. A new architecture is a row (and, where its names
 * or biases differ, a tensor list).
 */
#ifndef KVF_ARCH_H
#define KVF_ARCH_H

#include <stddef.h>
#include "engine/model/model.h"

enum arch_dim { DIM_ONE, DIM_VOCAB, DIM_HIDDEN, DIM_FFN, DIM_QUERY, DIM_KV }; /* DIM_ONE as rows: a vector */
enum arch_when { WHEN_ALWAYS, WHEN_UNTIED, WHEN_ATTENTION_BIAS, WHEN_MLP_BIAS };

struct arch_tensor {
    const char *name; /* whole, or after "<layer_prefix>N." */
    size_t field;     /* offset of a struct weight */
    enum arch_dim rows, cols;
    enum arch_when when;
};

struct arch {
    const char *name;       /* class name in `architectures` */
    const char *model_type; /* for configs without `architectures` */
    const char *layer_prefix;
    const struct arch_tensor *global, *layer;
    int global_count, layer_count;
};

const struct arch *arch_find(const char *name);
const struct arch *arch_find_type(const char *model_type);
/* The names that arch_find knows, with commas, into text[cap]; returns text. */
char *arch_names(char *text, size_t cap);

int64_t arch_dim_size(const struct model_config *config, enum arch_dim dim);
const char *arch_dim_name(enum arch_dim dim); /* the config keys that give it */
int arch_tensor_exists(const struct model_config *config, const struct arch_tensor *tensor);

#endif
