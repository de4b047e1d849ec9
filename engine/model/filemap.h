/* filemap.h: a regular file of a model folder, mapped read-only, and JSON out of it. Internal to engine/.
 *
 * Neither a FIFO nor a device can block or feed the reader: the file is opened without blocking and must be regular.
 * `name` is one path component. Every error line begins with the path.
 */
#ifndef KVF_FILEMAP_H
#define KVF_FILEMAP_H

#include <jansson.h>
#include <stdint.h>
#include "alloc/err.h"

struct filemap_place; /* entry of the list of what is mapped */
struct filemap {
    const unsigned char *data; /* NULL when the file is empty */
    int64_t size;
    struct filemap_place *place;
};

/* KVF_ENOTFOUND: there is no such file; KVF_EIO: it cannot be read or is not a regular file. */
KVF_MUSTCHECK int filemap_open(const char *folder, const char *name, struct filemap *out, struct kvf_err *err);
void filemap_close(struct filemap *map);

/* The path of the file that is mapped at `address`, NULL for any other address. Async-signal-safe: for a handler of
 * SIGBUS, which is what reading a mapped file that somebody shortened ends in. */
const char *filemap_path_at(const void *address);

/* Whether folder/name exists, whatever it is. */
int filemap_exists(const char *folder, const char *name);

/* The JSON object in text[size]; `where` begins the error line. Not UTF-8, NaN, nesting beyond 2048 levels and
 * duplicate keys are errors; the line gives the place. The caller calls json_decref. */
KVF_MUSTCHECK int json_parse(const char *where, const void *text, int64_t size, json_t **out, struct kvf_err *err);

/* The same from folder/name. */
KVF_MUSTCHECK int json_read(const char *folder, const char *name, json_t **out, struct kvf_err *err);

/* "a string", "null", ...: for "expected X, got Y" lines. */
const char *json_kind(const json_t *value);

#endif
