/* safetensors.h: one .safetensors file, mapped and checked. Internal to engine/model.
 *
 * The file is an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
 * After safetensors_open every tensor has a known dtype, a size that its shape and dtype give, and lies inside the file
 * without sharing a byte with another.
 */
#ifndef KVF_SAFETENSORS_H
#define KVF_SAFETENSORS_H

#include "engine/model/filemap.h"

#define TENSOR_MAX_DIMS 8

struct tensor {
    const char *name;  /* owned by the file's header */
    const char *dtype; /* as written: "BF16" */
    int dims;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t elements, bytes;
    const unsigned char *data; /* not aligned to anything */
};

struct safetensors {
    struct filemap map;
    json_t *header;
    struct tensor *tensor; /* [count], by name */
    int count;
};

KVF_MUSTCHECK int safetensors_open(const char *folder, const char *name, struct safetensors *out, struct kvf_err *err);
void safetensors_close(struct safetensors *file);
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);

/* "[384, 64]" into text[cap]; returns text. */
char *tensor_shape_text(const struct tensor *tensor, char *text, size_t cap);

#endif
