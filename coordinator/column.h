/* column.h: one array parameter of a statement, in PostgreSQL's binary form, built value by value: what unnest() takes.
 *
 * Format (src/backend/utils/adt/arrayfuncs.c, array_recv): int32 dimensions, int32 has-null, Oid element, int32 length,
 * int32 lower bound, then each element as int32 bytes (-1: NULL) and the bytes; big-endian. numeric: numeric_recv.
 * Out of memory is remembered and reported by column_finish.
 */
#ifndef KVF_COLUMN_H
#define KVF_COLUMN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/message.h"

enum column_kind {
    COLUMN_INT,     /* bigint */
    COLUMN_REAL,    /* double precision */
    COLUMN_TEXT,    /* text */
    COLUMN_NUMERIC, /* numeric, of whole numbers up to 2^64 - 1 */
};
struct column {
    enum column_kind kind;
    char *data;
    size_t len, cap;
    uint32_t n;
    bool has_null, failed;
};

void column_init(struct column *column, enum column_kind kind);
void column_free(struct column *column);
/* Keeps the memory for the next batch. */
void column_clear(struct column *column);

void column_int(struct column *column, int64_t value); /* MSG_NULL_INT: NULL */
void column_real(struct column *column, double value); /* NaN: NULL */
void column_text(struct column *column,
                 struct str value); /* text NULL: NULL; NUL bytes become U+FFFD, which can be stored */
void column_numeric(struct column *column, uint64_t value);

/* Writes the head; data and len are the parameter's value. */
KVF_MUSTCHECK int column_finish(struct column *column, struct kvf_err *err);
uint32_t column_oid(enum column_kind kind); /* of the array type */

/* One value in binary form into out: bytes written (numeric: at most 18). Shared with scalar parameters and copy.h. */
size_t binary_int(char *out, int64_t value);
size_t binary_narrow(char *out, int64_t value); /* the lower 32 bits: integer */
size_t binary_real(char *out, double value);
size_t binary_numeric(char *out, uint64_t value);
#define BINARY_VALUE_MAX 24
/* `from` with each NUL byte replaced by U+FFFD into out, which has 3 bytes for each of `from`; bytes written. */
size_t text_without_nul(char *out, struct str from);

#endif
