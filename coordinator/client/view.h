/* view.h: rows of the coordinator (JSON objects) as a table, as CSV and as JSON, from one list of columns. Pure. */
#ifndef KVF_VIEW_H
#define KVF_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "alloc/err.h"

/* Version of the JSON documents that the command prints; counted up when a field changes its meaning or goes. */
#define VIEW_SCHEMA_VERSION 1

enum view_kind {
    VIEW_TEXT,
    VIEW_SHORT, /* text cut to 32 columns */
    VIEW_ID,    /* whole number as it is */
    VIEW_COUNT, /* whole number with thousands */
    VIEW_FIXED, /* one decimal */
    VIEW_RATIO, /* three decimals */
    VIEW_BYTES,
    VIEW_PERCENT,
    VIEW_INTERVAL, /* two keys: low, high */
    VIEW_POINTS,   /* difference of two shares in percentage points */
    VIEW_P,
    VIEW_DURATION, /* seconds */
    VIEW_TIME,     /* timestamp */
    VIEW_MARK,     /* bool: "*" or nothing */
    VIEW_HIDDEN,   /* in JSON and CSV only */
};
struct view_column {
    const char *key, *header; /* key NULL ends the list */
    enum view_kind kind;
    const char *second_key; /* of VIEW_INTERVAL */
    bool only_if_any;       /* table: left out while it is 0, null or empty in every row */
};

void view_table(const struct view_column *columns, const json_t *rows, int width, int key_columns, FILE *out);
/* A head line, then a line a row, with the fields of view_ordered in its order; those of an object in a field are
 * fields "outer.inner", a list is its JSON. Missing values are empty, numbers have full precision. */
KVF_MUSTCHECK int view_csv(const struct view_column *columns, const json_t *rows, FILE *out, struct kvf_err *err);
/* New array: each row with the columns' keys first, in their order, then whatever else it has; missing values are null.
 */
json_t *view_ordered(const struct view_column *columns, const json_t *rows);
/* Prints {"schema_version": 1, ...} and a newline; takes over `document`, which is NULL after an allocation failed.
 * What cannot be written stays an error of `out`, as with a table. */
KVF_MUSTCHECK int view_json(json_t *document, FILE *out, struct kvf_err *err);

double view_number(const json_t *row, const char *key);      /* NaN when null or missing */
const char *view_string(const json_t *row, const char *key); /* NULL when null or missing */
/* The value as the table shows it, into text[cap]. */
const char *view_format(const struct view_column *column, const json_t *row, char *text, size_t cap);

#endif
