/* safetensors.c: see safetensors.h. */
#include "engine/model/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The format's own bound on its header. */
#define HEADER_MAX_BYTES 100000000

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

static int dtype_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) return dtypes[i].bytes;
    return 0;
}

/* Reads one header entry; `size` is that of the data section at `data`. */
static int tensor_read(const char *where, const char *name, const json_t *entry, const unsigned char *data,
                       int64_t size, struct tensor *out, struct kvf_err *err)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: expected dtype, shape and two data_offsets", where, name);
    *out = (struct tensor){.name = name, .dtype = json_string_value(dtype)};
    int item = dtype_bytes(out->dtype);
    if (item == 0) return kvf_fail(err, KVF_EUNSUPPORTED, "%s: %s: unknown dtype %s", where, name, out->dtype);
    if (json_array_size(shape) > TENSOR_MAX_DIMS)
        return kvf_fail(err, KVF_EUNSUPPORTED, "%s: %s: %zu dimensions, at most %d are supported", where, name,
                        json_array_size(shape), TENSOR_MAX_DIMS);
    out->dims = (int)json_array_size(shape);
    out->elements = 1;
    int overflow = 0;
    for (int i = 0; i < out->dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim))
            return kvf_fail(err, KVF_ECORRUPT, "%s: %s: dimension %d: expected an integer, got %s", where, name, i,
                            json_kind(dim));
        out->shape[i] = json_integer_value(dim);
        if (out->shape[i] < 0)
            return kvf_fail(err, KVF_ECORRUPT, "%s: %s: negative dimension %lld", where, name,
                            (long long)out->shape[i]);
        overflow |= __builtin_mul_overflow(out->elements, out->shape[i], &out->elements);
    }
    overflow |= __builtin_mul_overflow(out->elements, (int64_t)item, &out->bytes);
    char text[200];
    if (overflow)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: size of shape %s overflows", where, name,
                        tensor_shape_text(out, text, sizeof text));
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (!json_is_integer(first) || !json_is_integer(last))
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: data_offsets: expected integers, got %s and %s", where, name,
                        json_kind(first), json_kind(last));
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < 0)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: negative offset %lld", where, name,
                        (long long)(begin < 0 ? begin : end));
    if (begin > end)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: data begins at %lld after it ends at %lld", where, name,
                        (long long)begin, (long long)end);
    if (end > size)
        return kvf_fail(err, KVF_ECORRUPT,
                        "%s: %s: data ends past the end of the file: at byte %lld of a data section of %lld", where,
                        name, (long long)end, (long long)size);
    if (end - begin != out->bytes)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s: shape %s of %s needs %lld bytes, data has %lld", where, name,
                        tensor_shape_text(out, text, sizeof text), out->dtype, (long long)out->bytes,
                        (long long)(end - begin));
    out->data = data + begin;
    return KVF_OK;
}

static int tensor_by_place(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int tensor_by_name(const void *left, const void *right)
{
    return strcmp(((const struct tensor *)left)->name, ((const struct tensor *)right)->name);
}

static int header_read(const char *where, struct safetensors *file, struct kvf_err *err)
{
    if (file->map.size == 0) return kvf_fail(err, KVF_ECORRUPT, "%s: file is empty", where);
    if (file->map.size < 8)
        return kvf_fail(err, KVF_ECORRUPT, "%s: %lld bytes are too short for the 8-byte header length", where,
                        (long long)file->map.size);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)file->map.data[i] << (8 * i);
    if (length > (uint64_t)file->map.size - 8)
        return kvf_fail(err, KVF_ECORRUPT, "%s: header length %llu exceeds the file, which has %lld bytes after it",
                        where, (unsigned long long)length, (long long)file->map.size - 8);
    if (length > HEADER_MAX_BYTES)
        return kvf_fail(err, KVF_ECORRUPT, "%s: header length %llu is more than %d", where, (unsigned long long)length,
                        HEADER_MAX_BYTES);
    char place[PATH_MAX + 16];
    snprintf(place, sizeof place, "%s: header", where);
    int rc = json_parse(place, file->map.data + 8, (int64_t)length, &file->header, err);
    if (rc != KVF_OK) return rc;
    size_t entries = json_object_size(file->header);
    file->tensor = calloc(entries + 1, sizeof *file->tensor);
    if (file->tensor == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory for %zu tensors", where, entries);
    const unsigned char *data = file->map.data + 8 + length;
    int64_t size = file->map.size - 8 - (int64_t)length;
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        rc = tensor_read(where, name, entry, data, size, &file->tensor[file->count], err);
        if (rc != KVF_OK) return rc;
        file->count++;
    }
    qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, tensor_by_place);
    for (int i = 1; i < file->count; i++) {
        const struct tensor *before = &file->tensor[i - 1], *after = &file->tensor[i];
        if (before->data + before->bytes > after->data)
            return kvf_fail(err, KVF_ECORRUPT, "%s: data of %s and %s overlap", where, before->name, after->name);
    }
    qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, tensor_by_name);
    return KVF_OK;
}

int safetensors_open(const char *folder, const char *name, struct safetensors *out, struct kvf_err *err)
{
    *out = (struct safetensors){0};
    int rc = filemap_open(folder, name, &out->map, err);
    if (rc != KVF_OK) return rc;
    char where[PATH_MAX];
    snprintf(where, sizeof where, "%s/%s", folder, name);
    rc = header_read(where, out, err);
    if (rc != KVF_OK) safetensors_close(out);
    return rc;
}

void safetensors_close(struct safetensors *file)
{
    free(file->tensor);
    json_decref(file->header);
    filemap_close(&file->map);
    *file = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    if (file->count == 0) return NULL;
    struct tensor key = {.name = name};
    return bsearch(&key, file->tensor, (size_t)file->count, sizeof *file->tensor, tensor_by_name);
}

char *tensor_shape_text(const struct tensor *tensor, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < tensor->dims && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%lld", i == 0 ? "[" : ", ", (long long)tensor->shape[i]);
    if (at < cap) snprintf(text + at, cap - at, "%s", tensor->dims == 0 ? "[]" : "]");
    return text;
}
