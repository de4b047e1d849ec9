/* kv_internal.h: what the files of engine/kv share, and what tests need to break a pool on purpose. */
#ifndef KVF_KV_INTERNAL_H
#define KVF_KV_INTERNAL_H

#include <stddef.h>
#include <string.h>
#include "engine/kv/kv.h"

/* One (sequence, layer, kv head). `held` pages are in the list: those that `entries` need, and those set aside by
 * kv_reserve for the next `room` entries of the layer. */
struct kv_list {
    unsigned char **pages; /* [pool->list_pages] */
    int entries;
    int held;
};

struct kv_seq {
    int open;
    int tokens_seen;
    int compacted_at;      /* tokens_seen at the last compaction; 0: never */
    int64_t held;          /* pages over all lists */
    int list_count;        /* layers * kv_heads */
    struct kv_list *lists; /* [layers][kv_heads] */
    int *room;             /* [layers] entries that kv_put may still append without kv_reserve */
    int *queries_put;      /* [layers] rows that went through the ring since kv_seq_open */
    float *ring;           /* [layers][window][kv_heads * group][head_dim]; row r is at r % window */
    float *mass;           /* [layers][kv_heads][list_pages * 16] attention received; NULL: not kept */
};

/* What one thread needs to compact one layer. */
struct kv_scratch {
    struct compact_work *work;
    float *gathered;                  /* keys as rows [kv_heads][gather_entries][head_dim] */
    float *gathered_values;           /* the same; NULL: kv_pool_prepare was not asked for it */
    int32_t *gathered_positions;      /* [kv_heads][gather_entries] */
    float *queries;                   /* [window][kv_heads * group][head_dim] */
    const float **head_keys;          /* [kv_heads] into gathered */
    struct compact_tiles *head_tiles; /* [kv_heads] the pages themselves */
    const float **head_values;        /* [kv_heads] into gathered_values */
    const float **head_mass;          /* [kv_heads] into the sequence's */
    const int32_t **head_positions;
    int *head_entries;
    const int32_t **kept; /* [kv_heads] */
    int *keep_count;
};

struct kv_pool {
    struct kv_shape shape;
    int number_bytes; /* of one number of a page */
    int64_t page_bytes;
    int64_t pages, free_count, peak_in_use;
    int list_pages;     /* most pages of one list */
    int gather_entries; /* most entries of one list */
    int64_t workspace_bytes;

    unsigned char *slab; /* [pages][page_bytes] */
    int32_t *free;       /* stack of page numbers, [pages], the first free_count are free */
    struct kv_seq *seqs; /* [max_sequences] */

    /* backing of the sequences */
    struct kv_list *lists;
    unsigned char **tables;
    int *room, *queries_put;
    float *rings;

    int threads;
    struct kv_scratch *scratch; /* [threads] */
    float *mass;                /* [max_sequences][layers][kv_heads][list_pages * 16] or NULL: kv_pool_prepare */

    /* of a running kv_compact */
    int *layer_rc;            /* [max_sequences][layers] */
    int *plan_rc;             /* [max_sequences] */
    int64_t *layer_ns;        /* [max_sequences][layers] */
    double *statistic;        /* [max_sequences][layers] what online plans measured */
    int64_t *measured_budget; /* [max_sequences][layers] what they came to */
};

static inline int kv_pages_of(int64_t entries)
{
    return (int)((entries + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES);
}

static inline struct kv_list *kv_list_of(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head)
{
    return &seq->lists[layer * pool->shape.kv_heads + head];
}

static inline int32_t *kv_entry_position(const struct kv_pool *pool, const struct kv_list *list, int entry)
{
    unsigned char *page = list->pages[entry / KV_PAGE_ENTRIES];
    return (int32_t *)(page + (ptrdiff_t)2 * KV_PAGE_ENTRIES * pool->shape.head_dim * pool->number_bytes) +
           entry % KV_PAGE_ENTRIES;
}

/* The first of the entry's value numbers; they lie one after the other. */
static inline void *kv_entry_value(const struct kv_pool *pool, const struct kv_list *list, int entry)
{
    ptrdiff_t at = (ptrdiff_t)(KV_PAGE_ENTRIES + entry % KV_PAGE_ENTRIES) * pool->shape.head_dim;
    return list->pages[entry / KV_PAGE_ENTRIES] + at * pool->number_bytes;
}

static inline float kv_half_wide(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Nearest, ties to even; a NaN stays one. */
static inline uint16_t kv_half_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (number != number) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float *kv_list_mass(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head)
{
    int64_t list = (int64_t)layer * pool->shape.kv_heads + head;
    return seq->mass == NULL ? NULL : seq->mass + list * pool->list_pages * KV_PAGE_ENTRIES;
}

void kv_key_write(const struct kv_pool *pool, const struct kv_list *list, int entry, const float *key);
void kv_key_read(const struct kv_pool *pool, const struct kv_list *list, int entry, float *key);
void kv_value_write(const struct kv_pool *pool, const struct kv_list *list, int entry, const float *value);
void kv_value_read(const struct kv_pool *pool, const struct kv_list *list, int entry, float *value);

/* Shortens one list to the pages that its entries need; the rest goes back to the pool, last page first. */
void kv_list_trim(struct kv_pool *pool, struct kv_seq *seq, struct kv_list *list);

#endif
