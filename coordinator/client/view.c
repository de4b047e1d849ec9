#include "coordinator/client/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/format.h"
#include "coordinator/client/table.h"

#define SHORT_COLUMNS 32

double view_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);

    if (json_is_number(value)) return json_number_value(value);
    return NAN;
}

const char *view_string(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

/* Text of any value: numbers as they came, not rounded. "" for null. */
static const char *value_plain(const json_t *value, char *text, size_t cap)
{
    if (json_is_string(value)) return json_string_value(value);
    text[0] = '\0';
    if (json_is_integer(value)) snprintf(text, cap, "%lld", (long long)json_integer_value(value));
    if (json_is_real(value)) snprintf(text, cap, "%.17g", json_real_value(value));
    if (json_is_boolean(value)) snprintf(text, cap, "%s", json_is_true(value) ? "true" : "false");
    return text;
}

/* 2026-12-01T10:20:30.123+00:00 -> 2026-12-01 10:20:30+00:00 */
static const char *time_format(const char *time, char *text, size_t cap)
{
    const char *fraction = strchr(time, '.');
    size_t head = fraction == NULL ? strlen(time) : (size_t)(fraction - time);
    const char *zone = time + head;

    if (fraction != NULL) zone += 1 + strspn(fraction + 1, "0123456789");
    snprintf(text, cap, "%.*s%s", (int)head, time, zone);
    if (strlen(text) > 10 && text[10] == 'T') text[10] = ' ';
    return text;
}

static const char *short_format(const char *long_text, char *text, size_t cap)
{
    size_t end;

    snprintf(text, cap, "%s", long_text);
    if (text_width(text) <= SHORT_COLUMNS) return text;
    for (end = strlen(text); text_width(text) > SHORT_COLUMNS - 3;) {
        do {
            end--;
        } while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80);
        text[end] = '\0';
    }
    return strcat(text, "...");
}

const char *view_format(const struct view_column *column, const json_t *row, char *text, size_t cap)
{
    const json_t *value = json_object_get(row, column->key);
    double number = view_number(row, column->key);
    char figure[FORMAT_MAX];

    if (column->kind == VIEW_MARK) return json_is_true(value) ? "*" : "";
    if (value == NULL || json_is_null(value)) return "-";
    switch (column->kind) {
    case VIEW_COUNT:
        format_count(number, figure);
        break;
    case VIEW_FIXED:
        format_fixed(number, 1, figure);
        break;
    case VIEW_RATIO:
        format_fixed(number, 3, figure);
        break;
    case VIEW_BYTES:
        format_bytes(number, figure);
        break;
    case VIEW_PERCENT:
        format_percent(number, figure);
        break;
    case VIEW_POINTS:
        format_signed_points(number, figure);
        break;
    case VIEW_P:
        format_p(number, figure);
        break;
    case VIEW_DURATION:
        format_duration(number, figure);
        break;
    case VIEW_INTERVAL:
        format_interval(number, view_number(row, column->second_key), figure);
        break;
    case VIEW_TIME:
        return json_is_string(value) ? time_format(json_string_value(value), text, cap) : "-";
    case VIEW_SHORT:
        return json_is_string(value) ? short_format(json_string_value(value), text, cap) : "-";
    default:
        return value_plain(value, text, cap);
    }
    snprintf(text, cap, "%s", figure);
    return text;
}

static bool column_shown(const struct view_column *column, const json_t *rows)
{
    const json_t *row;
    size_t i;

    if (column->kind == VIEW_HIDDEN) return false;
    if (!column->only_if_any) return true;
    json_array_foreach(rows, i, row)
    {
        const json_t *value = json_object_get(row, column->key);
        if (json_is_number(value)   ? json_number_value(value) != 0
            : json_is_string(value) ? json_string_length(value) > 0
                                    : json_is_true(value))
            return true;
    }
    return false;
}

static bool kind_is_text(enum view_kind kind)
{
    return kind == VIEW_TEXT || kind == VIEW_SHORT || kind == VIEW_TIME || kind == VIEW_MARK;
}

void view_table(const struct view_column *columns, const json_t *rows, int width, int key_columns, FILE *out)
{
    struct table *table = table_new();
    const json_t *row;
    char text[512];
    size_t i;

    for (const struct view_column *column = columns; column->key != NULL; column++)
        if (column_shown(column, rows))
            table_column(table, column->header, kind_is_text(column->kind) ? TABLE_LEFT : TABLE_RIGHT);
    json_array_foreach(rows, i, row)
    {
        for (const struct view_column *column = columns; column->key != NULL; column++)
            if (column_shown(column, rows)) table_cell(table, view_format(column, row, text, sizeof text));
    }
    table_print(table, width, key_columns, out);
    table_free(&table);
}

static void key_copy(json_t *to, const json_t *from, const char *key)
{
    json_t *value = json_object_get(from, key);

    if (value == NULL)
        json_object_set_new(to, key, json_null());
    else
        json_object_set(to, key, value);
}

json_t *view_ordered(const struct view_column *columns, const json_t *rows)
{
    json_t *all = json_array(), *row, *value;
    const char *key;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        json_t *ordered = json_object();
        for (const struct view_column *column = columns; column->key != NULL; column++) {
            key_copy(ordered, row, column->key);
            if (column->second_key != NULL) key_copy(ordered, row, column->second_key);
        }
        json_object_foreach(row, key, value)
        {
            if (json_object_get(ordered, key) == NULL) json_object_set(ordered, key, value);
        }
        if (json_array_append_new(all, ordered) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* Adds the fields of `row` to `flat`: those of an object inside it one by one, as "outer.inner". */
static int row_flatten(json_t *flat, const char *outer, const json_t *row)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)row, key, value)
    {
        char name[256];
        snprintf(name, sizeof name, "%s%s%s", outer, *outer == '\0' ? "" : ".", key);
        if ((json_is_object(value) ? row_flatten(flat, name, value) : json_object_set(flat, name, value)) != 0)
            return -1;
    }
    return 0;
}

/* Every row of `ordered` flat, and in `names` every field that one has; NULL: out of memory. */
static json_t *rows_flatten(const json_t *ordered, json_t *names)
{
    json_t *all = json_array(), *row;
    size_t i;

    json_array_foreach(ordered, i, row)
    {
        json_t *flat = json_object();
        if (row_flatten(flat, "", row) == 0 && json_object_update(names, flat) == 0 &&
            json_array_append_new(all, flat) == 0)
            continue;
        json_decref(all);
        return NULL;
    }
    return all;
}

static void csv_value(const json_t *value, FILE *out)
{
    char text[64], *list = json_is_array(value) ? json_dumps(value, JSON_COMPACT) : NULL;

    csv_field(list != NULL ? list : value_plain(value, text, sizeof text), out);
    free(list);
}

int view_csv(const struct view_column *columns, const json_t *rows, FILE *out, struct kvf_err *err)
{
    json_t *none = json_pack("[{}]"), *known = view_ordered(columns, none), *ordered = view_ordered(columns, rows);
    json_t *names = json_object(), *heads = rows_flatten(known, names), *flat = rows_flatten(ordered, names), *row,
           *value;
    const char *name, *comma = "";
    size_t i;
    int code = heads == NULL || flat == NULL ? kvf_fail(err, KVF_ENOMEM, "CSV: out of memory") : KVF_OK;

    json_object_foreach(names, name, value)
    {
        if (code == KVF_OK) fprintf(out, "%s%s", comma, name);
        comma = ",";
    }
    if (code == KVF_OK) fputc('\n', out);
    json_array_foreach(flat, i, row)
    {
        comma = "";
        json_object_foreach(names, name, value)
        {
            fputs(comma, out);
            csv_value(json_object_get(row, name), out);
            comma = ",";
        }
        fputc('\n', out);
    }
    json_decref(flat);
    json_decref(heads);
    json_decref(names);
    json_decref(ordered);
    json_decref(known);
    json_decref(none);
    return code;
}

int view_json(json_t *document, FILE *out, struct kvf_err *err)
{
    json_t *whole = json_object();
    int code = KVF_OK;

    if (document == NULL || whole == NULL ||
        json_object_set_new(whole, "schema_version", json_integer(VIEW_SCHEMA_VERSION)) != 0 ||
        json_object_update(whole, document) != 0)
        code = kvf_fail(err, KVF_ENOMEM, "JSON: out of memory");
    else if ((json_dumpf(whole, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF) && !ferror(out))
        code = kvf_fail(err, KVF_ENOMEM, "JSON: out of memory"); /* an output that fails is main's to report */
    json_decref(whole);
    json_decref(document);
    return code;
}
