/* weightset.h: the weight files of a folder: model.safetensors, or the shards that model.safetensors.index.json names.
 * Internal to engine/model. */
#ifndef KVF_WEIGHTSET_H
#define KVF_WEIGHTSET_H

#include "engine/model/safetensors.h"

/* Names of the weight files, sorted, without opening them. A shard's name is one path component. */
struct weight_names {
    char **name; /* [count] */
    int count;
    json_t *weight_map; /* tensor -> file name; NULL: one file */
};
KVF_MUSTCHECK int weight_names_read(const char *folder, struct weight_names *out, struct kvf_err *err);
void weight_names_free(struct weight_names *names);

struct weightset {
    struct weight_names names;
    struct safetensors *file; /* [names.count] */
    void **copies;            /* tensors whose place in the file is not aligned to their items */
    int copy_count;
};

/* Maps and checks every file; each tensor of the index must be in the shard that it names. */
KVF_MUSTCHECK int weightset_open(const char *folder, struct weightset *out, struct kvf_err *err);
void weightset_close(struct weightset *set);

/* The tensor and the name of its file (optional); NULL when there is none. */
const struct tensor *weightset_find(const struct weightset *set, const char *name, const char **file_name);

/* The tensor's data where it is aligned to `item` bytes: in the file, or a copy that the set owns. NULL: no memory. */
const void *weightset_aligned(struct weightset *set, const struct tensor *tensor, int item);

#endif
