/* scorer.h: which entries matter. One table of scorers; a scorer is one file that defines one `struct scorer`, and one
 * row of the table in scorer.c. Internal to alloc/, but that the engine reads `needs` of a policy's scorer to know what
 * to hand over.
 *
 * A scorer sees a whole layer and writes one float per candidate. What happens to the scores (finite check, `relative`
 * scaling, head budgets, selection) is the same for all of them and lies in compact.c.
 */
#ifndef KVF_SCORER_H
#define KVF_SCORER_H

#include <stdint.h>
#include "alloc/compact.h"

/* What of compact_input a scorer reads beyond keys. */
enum scorer_needs {
    NEEDS_QUERIES = 1, /* the window's queries; at least one row */
    NEEDS_VALUES = 2,
    NEEDS_MASS = 4,   /* attention that an entry has received since it was appended */
    NEEDS_OUTPUT = 8, /* the layer's output projection */
    NEEDS_ROWS = 32,  /* keys one after the other; else tiles do, see compact_input.key_tiles */
    NEEDS_POSITIONS = 64,
    NEEDS_ROPE = 16, /* rotation frequencies, to take a query's rotation back */
};

#define SCORE_ROWS (COMPACT_DOT_ROWS + 1) /* products of as many vectors, and what they come to */

/* Scratch for the largest layer, padded = max_entries rounded up to 16; a scorer may use all of it, nothing in it
 * survives a call. */
struct score_scratch {
    float *row;           /* [SCORE_ROWS * padded] */
    float *first;         /* [max_entries] */
    float *second;        /* [max_entries] */
    float *tile;          /* [padded / 16][head_dim][16] */
    float *unit;          /* [padded][head_dim], or as tile */
    const void **tile_at; /* [padded / 16] into tile, not to be written */
    const void **unit_at; /* the same of unit */
    float *vector;        /* [17 * head_dim] */
    float *matrix;        /* [head_dim][head_dim] */
    float *column;        /* [padded] */
    int32_t *marker;      /* [max_entries] */
    int32_t *scan;        /* COMPACT_SCAN_WORDS(max_entries, head_dim) */
};

struct scorer {
    const char *name;
    const char *source; /* paper, as `kvfleet policies` prints it */
    unsigned needs;     /* enum scorer_needs, ored */
    int sinks_tokens;   /* default of `sinks` */
    const char *keys;   /* space-separated names of the parameters it reads (policy.c knows type, range, default) */
    int shared_entries; /* 1: one set of entries for all heads of the layer, so only the uniform router makes sense */
    int incomparable; /* 1: scores of two heads are not on one scale, so a pooled router makes no sense; 0: they are */
    /* score[h][j], 0 <= j < max(0, entries[h] - window), for every head; larger stays longer. */
    void (*score)(const struct policy *policy, const struct compact_input *in, const struct compact_kernels *kernels,
                  struct score_scratch *scratch, int window, float *const *score);
    /* NULL, or: called for one head once it is known that `keep` of its candidates (entries sinks...past - 1) stay;
     * rewrites score[0...past - 1] for the final choice. */
    void (*refine)(const struct policy *policy, const struct compact_input *in, const struct compact_kernels *kernels,
                   struct score_scratch *scratch, int head, int past, int keep, float *score);
};

/* Table order; NULL past the end. The index is policy.scorer. */
const struct scorer *scorer_at(int index);
/* -1 when there is none of that name. */
int scorer_find(const char *name, int length);

#endif
