#include "coordinator/client/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

struct table_head {
    char *text;
    enum table_align align;
};
struct table {
    struct table_head *columns;
    int n_columns;
    char **cells; /* [row][column] */
    int n_cells, cap_cells;
    bool failed; /* out of memory: what is missing prints as "-" */
};

/* Length of the character at `text` in bytes and its columns. */
static int character_step(const char *text, size_t left, int *columns)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)left, &code);

    *columns = 1;
    if (step <= 0) return 1;
    if (code >= 0x20) *columns = utf8proc_charwidth(code);
    return (int)step;
}

int text_width(const char *text)
{
    int width = 0, columns;

    for (size_t left = strlen(text); left > 0;) {
        int step = character_step(text, left, &columns);
        width += columns;
        text += step;
        left -= (size_t)step;
    }
    return width;
}

void text_print(const char *text, bool lines, FILE *out)
{
    for (size_t left = strlen(text); left > 0;) {
        int columns, step = character_step(text, left, &columns);
        unsigned char first = (unsigned char)*text;
        bool control = first < 0x20 || first == 0x7f || (first == 0xc2 && step == 2 && (unsigned char)text[1] < 0xa0) ||
                       (step == 1 && first >= 0x80);
        if (control && !(lines && (first == '\n' || first == '\t')))
            fputc('?', out);
        else
            fwrite(text, 1, (size_t)step, out);
        text += step;
        left -= (size_t)step;
    }
}

int terminal_width(FILE *out)
{
    struct winsize size;

    if (!isatty(fileno(out))) return 0;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

void csv_field(const char *text, FILE *out)
{
    size_t length = strlen(text);
    bool quoted = strpbrk(text, ",\"\r\n") != NULL || (length > 0 && (text[0] == ' ' || text[length - 1] == ' '));

    if (!quoted) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"') fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

struct table *table_new(void)
{
    return calloc(1, sizeof(struct table));
}

void table_free(struct table **table)
{
    if (table == NULL || *table == NULL) return;
    for (int i = 0; i < (*table)->n_columns; i++) free((*table)->columns[i].text);
    for (int i = 0; i < (*table)->n_cells; i++) free((*table)->cells[i]);
    free((*table)->columns);
    free((*table)->cells);
    free(*table);
    *table = NULL;
}

void table_column(struct table *table, const char *header, enum table_align align)
{
    struct table_head *grown;
    char *copy;

    if (table == NULL || table->failed) return;
    grown = realloc(table->columns, (size_t)(table->n_columns + 1) * sizeof *grown);
    copy = strdup(header);
    if (grown != NULL) table->columns = grown;
    if (grown == NULL || copy == NULL) {
        free(copy);
        table->failed = true;
        return;
    }
    table->columns[table->n_columns++] = (struct table_head){copy, align};
}

void table_cell(struct table *table, const char *text)
{
    size_t size = 0;
    FILE *memory;

    if (table == NULL || table->failed) return;
    if (table->n_cells == table->cap_cells) {
        int cap = table->cap_cells == 0 ? 64 : table->cap_cells * 2;
        char **grown = realloc(table->cells, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            table->failed = true;
            return;
        }
        table->cells = grown;
        table->cap_cells = cap;
    }
    table->cells[table->n_cells] = NULL;
    memory = open_memstream(&table->cells[table->n_cells], &size);
    if (memory == NULL) {
        table->failed = true;
        return;
    }
    text_print(text == NULL ? "-" : text, false, memory);
    if (fclose(memory) != 0) table->failed = true;
    table->n_cells++;
}

int table_rows(const struct table *table)
{
    return table == NULL || table->n_columns == 0 ? 0 : table->n_cells / table->n_columns;
}

static int header_lines(const char *header)
{
    int lines = 1;

    for (; *header != '\0'; header++) lines += *header == '\n';
    return lines;
}

/* Line `number` (0-based) of a header that is `depth` lines deep, bottom-aligned. */
static void header_line(const char *header, int depth, int number, char *out, size_t cap)
{
    int skip = number - (depth - header_lines(header));
    const char *end;

    out[0] = '\0';
    if (skip < 0) return;
    for (; skip > 0; skip--) header = strchr(header, '\n') + 1;
    end = strchrnul(header, '\n');
    snprintf(out, cap, "%.*s", (int)(end - header), header);
}

static const char *table_text(const struct table *table, int row, int column)
{
    const char *text = table->cells[row * table->n_columns + column];

    return text == NULL ? "-" : text;
}

static int column_width(const struct table *table, int column, int depth)
{
    char line[128];
    int widest = 0, rows = table_rows(table);

    for (int i = 0; i < depth; i++) {
        header_line(table->columns[column].text, depth, i, line, sizeof line);
        if (text_width(line) > widest) widest = text_width(line);
    }
    for (int row = 0; row < rows; row++) {
        int width = text_width(table_text(table, row, column));
        if (width > widest) widest = width;
    }
    return widest;
}

static void padded_print(const char *text, int width, enum table_align align, FILE *out)
{
    int pad = width - text_width(text);

    if (align == TABLE_RIGHT) fprintf(out, "%*s", pad, "");
    fputs(text, out);
    if (align == TABLE_LEFT) fprintf(out, "%*s", pad, "");
}

/* Line `number` of the head (row < 0) or a row, without spaces at its end. */
static void line_print(const struct table *table, const int *widths, const int *picked, int n_picked, int depth,
                       int number, int row, FILE *out)
{
    char *line = NULL, head[128];
    size_t length = 0;
    FILE *memory = open_memstream(&line, &length);

    if (memory == NULL) return;
    for (int k = 0; k < n_picked; k++) {
        const struct table_head *column = &table->columns[picked[k]];
        if (row < 0) header_line(column->text, depth, number, head, sizeof head);
        if (k > 0) fputs("  ", memory);
        padded_print(row < 0 ? head : table_text(table, row, picked[k]), widths[picked[k]], column->align, memory);
    }
    if (fclose(memory) == 0) {
        while (length > 0 && line[length - 1] == ' ') length--;
        fwrite(line, 1, length, out);
        fputc('\n', out);
    }
    free(line);
}

static void block_print(const struct table *table, const int *widths, const int *picked, int n_picked, int depth,
                        FILE *out)
{
    for (int i = 0; i < depth; i++) line_print(table, widths, picked, n_picked, depth, i, -1, out);
    for (int row = 0; row < table_rows(table); row++) line_print(table, widths, picked, n_picked, depth, 0, row, out);
}

void table_print(const struct table *table, int width, int key_columns, FILE *out)
{
    int depth = 1, *widths, *picked, next;

    if (table == NULL || table->n_columns == 0) return;
    widths = calloc((size_t)table->n_columns * 2, sizeof *widths);
    if (widths == NULL) return;
    picked = widths + table->n_columns;
    for (int i = 0; i < table->n_columns; i++)
        if (header_lines(table->columns[i].text) > depth) depth = header_lines(table->columns[i].text);
    for (int i = 0; i < table->n_columns; i++) widths[i] = column_width(table, i, depth);
    if (key_columns > table->n_columns) key_columns = table->n_columns;

    next = 0;
    do {
        int used = 0, n_picked = 0, start = next;
        if (start > 0) {
            fputc('\n', out);
            for (int i = 0; i < key_columns; i++) {
                picked[n_picked++] = i;
                used += widths[i] + 2;
            }
        }
        while (next < table->n_columns &&
               (width <= 0 || next == start || next < key_columns || used + widths[next] <= width)) {
            used += widths[next] + 2;
            picked[n_picked++] = next++;
        }
        block_print(table, widths, picked, n_picked, depth, out);
    } while (next < table->n_columns);
    free(widths);
}
