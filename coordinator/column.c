#include "coordinator/column.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 20

/* Type oids of the catalogue, fixed for ever (pg_type.dat). */
static const struct {
    uint32_t element, array;
} oids[] = {[COLUMN_INT] = {20, 1016},
            [COLUMN_REAL] = {701, 1022},
            [COLUMN_TEXT] = {25, 1009},
            [COLUMN_NUMERIC] = {1700, 1231}};

static void put16(char *out, uint16_t value)
{
    out[0] = (char)(value >> 8);
    out[1] = (char)value;
}

static void put32(char *out, uint32_t value)
{
    put16(out, (uint16_t)(value >> 16));
    put16(out + 2, (uint16_t)value);
}

size_t binary_int(char *out, int64_t value)
{
    put32(out, (uint32_t)((uint64_t)value >> 32));
    put32(out + 4, (uint32_t)(uint64_t)value);
    return 8;
}

size_t binary_narrow(char *out, int64_t value)
{
    put32(out, (uint32_t)(uint64_t)value);
    return 4;
}

size_t binary_real(char *out, double value)
{
    int64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return binary_int(out, bits);
}

size_t binary_numeric(char *out, uint64_t value)
{
    uint16_t digits[5]; /* base 10000, lowest first */
    int n = 0, low = 0;

    for (; value != 0; value /= 10000) digits[n++] = (uint16_t)(value % 10000);
    while (low < n && digits[low] == 0) low++; /* trailing zeros are not written */
    put16(out, (uint16_t)(n - low));
    put16(out + 2, (uint16_t)(n == 0 ? 0 : n - 1)); /* weight of the first digit */
    put16(out + 4, 0);                              /* sign */
    put16(out + 6, 0);                              /* digits after the point */
    for (int i = n - 1; i >= low; i--) put16(out + 8 + 2 * (n - 1 - i), digits[i]);
    return 8 + 2 * (size_t)(n - low);
}

size_t text_without_nul(char *out, struct str from)
{
    size_t len = 0;

    for (uint32_t i = 0; i < from.len; i++) {
        if (from.text[i] != '\0') {
            out[len++] = from.text[i];
            continue;
        }
        memcpy(out + len, "\xef\xbf\xbd", 3);
        len += 3;
    }
    return len;
}

uint32_t column_oid(enum column_kind kind)
{
    return oids[kind].array;
}

void column_init(struct column *column, enum column_kind kind)
{
    memset(column, 0, sizeof *column);
    column->kind = kind;
}

void column_free(struct column *column)
{
    free(column->data);
    column_init(column, column->kind);
}

void column_clear(struct column *column)
{
    column->len = 0;
    column->n = 0;
    column->has_null = column->failed = false;
}

/* Room for one more element of `bytes`; NULL when there is no memory. */
static char *column_room(struct column *column, size_t bytes)
{
    if (column->len == 0) column->len = HEAD_BYTES;
    if (column->len + bytes + 4 > column->cap) {
        size_t cap = 2 * (column->len + bytes + 4) + 256;
        char *data = realloc(column->data, cap);
        if (data == NULL) {
            column->failed = true;
            return NULL;
        }
        column->data = data;
        column->cap = cap;
    }
    return column->data + column->len + 4;
}

static void column_added(struct column *column, size_t bytes)
{
    put32(column->data + column->len, (uint32_t)bytes);
    column->len += 4 + bytes;
    column->n++;
}

static void column_null(struct column *column)
{
    if (column_room(column, 0) == NULL) return;
    put32(column->data + column->len, UINT32_MAX);
    column->len += 4;
    column->n++;
    column->has_null = true;
}

void column_int(struct column *column, int64_t value)
{
    char *out = value == MSG_NULL_INT ? NULL : column_room(column, 8);

    if (value == MSG_NULL_INT)
        column_null(column);
    else if (out != NULL)
        column_added(column, binary_int(out, value));
}

void column_real(struct column *column, double value)
{
    char *out = isnan(value) ? NULL : column_room(column, 8);

    if (isnan(value))
        column_null(column);
    else if (out != NULL)
        column_added(column, binary_real(out, value));
}

void column_text(struct column *column, struct str value)
{
    bool plain = value.text != NULL && memchr(value.text, '\0', value.len) == NULL;
    char *out = value.text == NULL ? NULL : column_room(column, plain ? value.len : 3 * (size_t)value.len);

    if (value.text == NULL) {
        column_null(column);
    } else if (out != NULL && plain) {
        memcpy(out, value.text, value.len);
        column_added(column, value.len);
    } else if (out != NULL) {
        column_added(column, text_without_nul(out, value));
    }
}

void column_numeric(struct column *column, uint64_t value)
{
    char *out = column_room(column, BINARY_VALUE_MAX);

    if (out != NULL) column_added(column, binary_numeric(out, value));
}

int column_finish(struct column *column, struct kvf_err *err)
{
    if (column->len == 0) column_room(column, 0); /* an empty array: no dimension */
    if (column->failed) return kvf_fail(err, KVF_ENOMEM, "out of memory for a column of %u values", column->n);
    put32(column->data, column->n == 0 ? 0 : 1);
    put32(column->data + 4, column->has_null);
    put32(column->data + 8, oids[column->kind].element);
    if (column->n == 0) {
        column->len = 12;
        return KVF_OK;
    }
    put32(column->data + 12, column->n);
    put32(column->data + 16, 1);
    return KVF_OK;
}
