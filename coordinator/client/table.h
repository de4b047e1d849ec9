/* table.h: aligned text tables and CSV. A table owns copies of its texts; widths count terminal columns, not bytes. */
#ifndef KVF_TABLE_H
#define KVF_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum table_align { TABLE_LEFT, TABLE_RIGHT };

struct table;

struct table *table_new(void); /* NULL: out of memory; every other call accepts that NULL and does nothing */
void table_free(struct table **table);
/* A header of several lines has '\n' in it; it sits on the bottom line of the head. Columns come before rows. */
void table_column(struct table *table, const char *header, enum table_align align);
/* The next cell, from left to right and then from top to bottom. Control characters are shown as '?', NULL as "-". */
void table_cell(struct table *table, const char *text);
int table_rows(const struct table *table);
/* Prints the table, two spaces between columns, nothing after the last one. When it is wider than `width` columns (0:
 * no limit), it is cut into blocks of columns that fit, each beginning with the first `key_columns` ones again. */
void table_print(const struct table *table, int width, int key_columns, FILE *out);

/* Columns that a terminal uses for a UTF-8 text; a byte that is not UTF-8 counts as one. */
int text_width(const char *text);
/* Prints text without control characters (except, if `lines`, newline and tab): data of others on a terminal. */
void text_print(const char *text, bool lines, FILE *out);
/* Columns of the terminal that `out` is, or 0 when it is none. */
int terminal_width(FILE *out);

/* One CSV field (RFC 4180): quoted when it holds a comma, a quote, CR, LF or outer spaces. */
void csv_field(const char *text, FILE *out);

#endif
