/* copy.h: rows of a COPY ... FROM STDIN (FORMAT binary), built field by field, sent in pieces.
 *
 * Format (PostgreSQL manual, COPY, "Binary Format"): a head of 19 bytes, rows of an int16 with the number of fields and
 * each field as int32 bytes (-1: NULL) and the bytes in its type's binary form, an int16 of -1 at the end; big-endian.
 * A field must have the width of its column exactly: an integer column takes copy_narrow, a bigint copy_int. Out of
 * memory is remembered in `failed`.
 */
#ifndef KVF_COPY_H
#define KVF_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/message.h"

struct copy {
    char *data; /* [len] what was not sent yet */
    size_t len, cap;
    bool failed;
};

void copy_init(struct copy *copy);
void copy_free(struct copy *copy);
/* Forgets what is there and begins a stream with its head. Keeps the memory. */
void copy_begin(struct copy *copy);
void copy_clear(struct copy *copy); /* what was sent */
void copy_row(struct copy *copy, int n_fields);
void copy_int(struct copy *copy, int64_t value);     /* bigint; MSG_NULL_INT: NULL */
void copy_narrow(struct copy *copy, int64_t value);  /* integer, must fit; MSG_NULL_INT: NULL */
void copy_real(struct copy *copy, double value);     /* double precision; NaN: NULL */
void copy_text(struct copy *copy, struct str value); /* text NULL: NULL; NUL bytes become U+FFFD */
void copy_numeric(struct copy *copy, uint64_t value);
void copy_end(struct copy *copy);

#endif
