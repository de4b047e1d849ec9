/* kv_map.h: how many KV entries each (layer, kv head) of one sequence held while it was decoded, for people: what
 * request.on_entries said, figures, a grid of it over time, text and JSON. kv_plot.h draws it.
 *
 * A map has points: after prefill, before and after each compaction, at the end. Between two points every head grows by
 * one entry a token, so that the points say everything. A "list" is one (layer, kv head), number layer * kv_heads +
 * head; figures are of a run of lists: one head, a layer's, or all. One thread; nothing is kept but what kv_map_free
 * and kv_grid_free release.
 */
#ifndef KVF_KV_MAP_H
#define KVF_KV_MAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>
#include "alloc/err.h"

struct kv_map {
    int layers, kv_heads;
    int count, cap;   /* points */
    int *tokens;      /* [count] tokens seen, never falls */
    bool *after;      /* [count] right after a compaction */
    int32_t *entries; /* [count][layers][kv_heads] */
    bool lost;        /* there was no memory for a point: the map is no good */
};

void kv_map_begin(struct kv_map *map, int layers, int kv_heads);
void kv_map_free(struct kv_map *map);
/* entries: [layers][kv_heads]. A point that repeats the last one adds nothing; fewer tokens than the last one's mean
 * that the sequence started again, and so does the map. */
void kv_map_add(struct kv_map *map, int tokens, bool after, const int32_t *entries);

/* ---- figures ---- */

struct kv_map_figures {
    int64_t final, peak;           /* entries at the end; most at once */
    double mean;                   /* over decode steps, each counted before its compaction; without one: final */
    double kept;                   /* mean right after compactions; -1: there was none */
    int64_t kept_least, kept_most; /* the same, extremes */
};
/* Of the sum of `lists` lists from number `first` on. The map has a point. */
struct kv_map_figures kv_map_figures(const struct kv_map *map, int first, int lists);
int kv_map_compactions(const struct kv_map *map);
/* Bytes of the pages that all lists need `grown` tokens after a point. */
int64_t kv_map_bytes(const struct kv_map *map, int point, int grown, int page_entries, int64_t page_bytes);
/* The same over all decode steps, each before its compaction, as the engine measures live bytes; where there was no
 * step, what the last point takes. The peak counts the prompt too. */
void kv_map_live(const struct kv_map *map, int page_entries, int64_t page_bytes, double *mean, int64_t *peak);

/* ---- over time ---- */

/* A row a list, or a layer with its heads summed. A column begins at a compaction, or, before the first and where a
 * stretch without one is longer, every `step` tokens; a cell has the entries at its column's first token. Where there
 * are more than the columns wanted, neighbours are one: the mean of theirs. */
struct kv_grid {
    int rows, columns;
    int merged;    /* most columns in one; 1: none were merged */
    int *tokens;   /* [columns + 1] the first of each, ascending; then the end */
    double *cells; /* [rows][columns] entries */
    double top;    /* largest cell */
};
/* step: tokens, >= 1; for a sequence without compactions it is chosen from its length. KVF_EINVAL: a map without
 * points; KVF_ENOMEM. */
KVF_MUSTCHECK int kv_grid_make(const struct kv_map *map, bool by_layer, int step, int most_columns, struct kv_grid *out,
                               struct kvf_err *err);
void kv_grid_free(struct kv_grid *grid);

/* ---- as text ---- */

enum kv_ink {
    KV_INK_ASCII,  /* " .:-=+*#%@" */
    KV_INK_BLOCKS, /* bars of eight heights, UTF-8 */
    KV_INK_256,    /* colours of a terminal of 256 */
    KV_INK_TRUE,   /* 24-bit colours */
};
struct kv_map_text {
    const struct kv_map *map;
    int budget_tokens, interval_tokens; /* budget 0: nothing is evicted */
    bool by_layer;
    int width; /* columns of the terminal or the page */
    enum kv_ink ink;
};
/* A heat map with its scale, final, mean and peak entries of each row, totals of each layer, the budget. KVF_ENOMEM,
 * KVF_EINVAL as kv_grid_make; nothing was printed then. */
KVF_MUSTCHECK int kv_map_print(const struct kv_map_text *text, FILE *out, struct kvf_err *err);
/* Which of `levels` a value is: level k holds k * top / levels and more. */
int kv_map_level(double value, double top, int levels);

/* {"tokens": [...], "after": [...], "entries": [[[...]]]}: a point, a layer, a head. NULL: out of memory. */
json_t *kv_map_json(const struct kv_map *map);

#endif
