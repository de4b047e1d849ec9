#include "coordinator/copy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/column.h"

void copy_init(struct copy *copy)
{
    memset(copy, 0, sizeof *copy);
}

void copy_free(struct copy *copy)
{
    free(copy->data);
    copy_init(copy);
}

void copy_clear(struct copy *copy)
{
    copy->len = 0;
}

static char *copy_room(struct copy *copy, size_t bytes)
{
    if (copy->len + bytes > copy->cap) {
        size_t cap = 2 * (copy->len + bytes) + 1024;
        char *data = realloc(copy->data, cap);
        if (data == NULL) {
            copy->failed = true;
            return NULL;
        }
        copy->data = data;
        copy->cap = cap;
    }
    return copy->data + copy->len;
}

void copy_begin(struct copy *copy)
{
    static const char head[19] = "PGCOPY\n\377\r\n\0"; /* then no flags and no extension: zeros */
    char *out;

    copy->failed = false;
    copy_clear(copy);
    if ((out = copy_room(copy, sizeof head)) == NULL) return;
    memcpy(out, head, sizeof head);
    copy->len = sizeof head;
}

static void copy_int16(struct copy *copy, int value)
{
    char *out = copy_room(copy, 2);

    if (out == NULL) return;
    out[0] = (char)(value >> 8);
    out[1] = (char)value;
    copy->len += 2;
}

void copy_row(struct copy *copy, int n_fields)
{
    copy_int16(copy, n_fields);
}

void copy_end(struct copy *copy)
{
    copy_int16(copy, -1);
}

static void copy_null(struct copy *copy)
{
    char *out = copy_room(copy, 4);

    if (out == NULL) return;
    memset(out, 0xff, 4);
    copy->len += 4;
}

/* Puts the length in front of the value that is `bytes` long and stands behind it already. */
static void copy_added(struct copy *copy, size_t bytes)
{
    binary_narrow(copy->data + copy->len, (int64_t)bytes);
    copy->len += 4 + bytes;
}

void copy_int(struct copy *copy, int64_t value)
{
    char *out = copy_room(copy, 4 + BINARY_VALUE_MAX);

    if (value == MSG_NULL_INT)
        copy_null(copy);
    else if (out != NULL)
        copy_added(copy, binary_int(out + 4, value));
}

void copy_narrow(struct copy *copy, int64_t value)
{
    char *out = copy_room(copy, 4 + BINARY_VALUE_MAX);

    if (value == MSG_NULL_INT)
        copy_null(copy);
    else if (out != NULL)
        copy_added(copy, binary_narrow(out + 4, value));
}

void copy_real(struct copy *copy, double value)
{
    char *out = copy_room(copy, 4 + BINARY_VALUE_MAX);

    if (isnan(value))
        copy_null(copy);
    else if (out != NULL)
        copy_added(copy, binary_real(out + 4, value));
}

void copy_numeric(struct copy *copy, uint64_t value)
{
    char *out = copy_room(copy, 4 + BINARY_VALUE_MAX);

    if (out != NULL) copy_added(copy, binary_numeric(out + 4, value));
}

void copy_text(struct copy *copy, struct str value)
{
    bool plain = value.text != NULL && memchr(value.text, '\0', value.len) == NULL;
    char *out = value.text == NULL ? NULL : copy_room(copy, 4 + (plain ? value.len : 3 * (size_t)value.len));

    if (value.text == NULL) {
        copy_null(copy);
    } else if (out != NULL && plain) {
        memcpy(out + 4, value.text, value.len);
        copy_added(copy, value.len);
    } else if (out != NULL) {
        copy_added(copy, text_without_nul(out + 4, value));
    }
}
