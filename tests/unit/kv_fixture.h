/* kv_fixture.h: what the page cache tests share: pools, rows that can be computed again from where they belong, and a
 * plain model of one sequence (arrays, no pages) to compare with. */
#ifndef KVF_TEST_KV_FIXTURE_H
#define KVF_TEST_KV_FIXTURE_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv.h"

enum { ROW_KEY = 1, ROW_VALUE, ROW_QUERY };

static inline uint64_t fixture_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Element k of a row, in -1 to 1: no two rows are alike, so that an entry in the wrong place is seen. */
static inline float fixture_element(int kind, uint64_t sample, int layer, int head, int position, int k)
{
    const uint64_t parts[] = {(uint64_t)kind, (uint64_t)layer, (uint64_t)head, (uint64_t)position, (uint64_t)k};
    uint64_t x = sample;
    for (int p = 0; p < 5; p++) x = fixture_mix(x + 0x9E3779B97F4A7C15u * (parts[p] + 1));
    return (float)(x >> 40) * 0x1p-23f - 1.0f;
}

static inline void fixture_rows(int kind, uint64_t sample, int layer, int heads, int dim, int first, int tokens,
                                float *out)
{
    for (int t = 0; t < tokens; t++) {
        for (int h = 0; h < heads; h++) {
            for (int k = 0; k < dim; k++) *out++ = fixture_element(kind, sample, layer, h, first + t, k);
        }
    }
}

static inline int64_t fixture_page_bytes(const struct kv_shape *shape)
{
    return KV_PAGE_ENTRIES * ((int64_t)2 * shape->head_dim * (shape->half ? 2 : 4) + 4);
}

/* What the cache gives back of a number: itself, or the nearest bf16 (found by counting, not by the trick of bits). */
static inline float fixture_stored(const struct kv_shape *shape, float number)
{
    if (!shape->half || number == 0.0f) return number;
    int exponent;
    double fraction = frexp((double)number, &exponent);
    return (float)ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

static inline float fixture_number(const struct kv_shape *shape, const void *page, int index)
{
    if (!shape->half) return ((const float *)page)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)page)[index] << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* kv_compact of one sequence on this thread. */
static inline int fixture_compact(struct kv_pool *pool, struct kv_seq *seq, const struct policy *policy,
                                  const int64_t *layer_budget, uint64_t seed, struct kv_compaction_stats *stats,
                                  struct kvf_err *err)
{
    struct kv_due due = {.seq = seq, .policy = policy, .layer_budget = layer_budget, .seed = seed};
    kv_compact(pool, &due, 1, NULL, NULL);
    *stats = due.stats;
    *err = due.err;
    return due.rc;
}

static inline struct kv_pool *fixture_pool(const struct kv_shape *shape, int64_t pages)
{
    struct kv_pool *pool = NULL;
    struct kvf_err err = {""};
    ck_assert_msg(kv_pool_new(shape, pages * fixture_page_bytes(shape), &pool, &err) == 0, "%s", err.text);
    ck_assert_int_eq(kv_pool_free_pages(pool), pages);
    return pool;
}

static inline struct kv_seq *fixture_open(struct kv_pool *pool)
{
    struct kv_seq *seq = NULL;
    struct kvf_err err = {""};
    ck_assert_msg(kv_seq_open(pool, NULL, &seq, &err) == 0, "%s", err.text);
    return seq;
}

static inline void fixture_check(const struct kv_pool *pool)
{
    struct kvf_err err = {""};
    ck_assert_msg(kv_check(pool, &err) == 0, "%s", err.text);
}

/* Appends the next `tokens` positions to every layer; room was reserved. */
static inline void fixture_put(struct kv_pool *pool, const struct kv_shape *shape, struct kv_seq *seq, uint64_t sample,
                               int tokens)
{
    int first = kv_tokens_seen(seq), queries = shape->kv_heads * shape->group, dim = shape->head_dim;
    float *key = malloc((size_t)tokens * (size_t)(shape->kv_heads * dim) * sizeof *key);
    float *value = malloc((size_t)tokens * (size_t)(shape->kv_heads * dim) * sizeof *value);
    float *query = malloc((size_t)tokens * (size_t)(queries * dim) * sizeof *query);
    for (int l = 0; l < shape->layers; l++) {
        fixture_rows(ROW_KEY, sample, l, shape->kv_heads, dim, first, tokens, key);
        fixture_rows(ROW_VALUE, sample, l, shape->kv_heads, dim, first, tokens, value);
        fixture_rows(ROW_QUERY, sample, l, queries, dim, first, tokens, query);
        kv_put(pool, seq, l, tokens, first, key, value, query);
    }
    free(key);
    free(value);
    free(query);
}

static inline void fixture_append(struct kv_pool *pool, const struct kv_shape *shape, struct kv_seq *seq,
                                  uint64_t sample, int tokens)
{
    ck_assert_int_eq(kv_reserve(pool, seq, tokens), 0);
    fixture_put(pool, shape, seq, sample, tokens);
}

/* ---- the plain model ---- */

/* Which positions every head of one sequence holds; keys and values follow from them. */
struct plain {
    uint64_t sample;
    int seen;
    int *count;         /* [layers][kv_heads] */
    int32_t *positions; /* [layers][kv_heads][max_entries] */
};

static inline struct plain plain_new(const struct kv_shape *shape, uint64_t sample)
{
    size_t lists = (size_t)(shape->layers * shape->kv_heads);
    return (struct plain){.sample = sample,
                          .count = calloc(lists, sizeof(int)),
                          .positions = calloc(lists * (size_t)shape->max_entries, sizeof(int32_t))};
}

static inline void plain_free(struct plain *plain)
{
    free(plain->count);
    free(plain->positions);
    *plain = (struct plain){0};
}

static inline int32_t *plain_positions(const struct plain *plain, const struct kv_shape *shape, int layer, int head)
{
    return plain->positions + (size_t)(layer * shape->kv_heads + head) * (size_t)shape->max_entries;
}

static inline void plain_append(struct plain *plain, const struct kv_shape *shape, int tokens)
{
    for (int l = 0; l < shape->layers; l++) {
        for (int h = 0; h < shape->kv_heads; h++) {
            int *count = &plain->count[l * shape->kv_heads + h];
            for (int t = 0; t < tokens; t++) plain_positions(plain, shape, l, h)[(*count)++] = plain->seen + t;
        }
    }
    plain->seen += tokens;
}

/* Entry by entry: positions, keys and values, through the copies and through the pages that attention reads. */
static inline void plain_compare(const struct plain *plain, const struct kv_shape *shape, const struct kv_pool *pool,
                                 const struct kv_seq *seq)
{
    int dim = shape->head_dim;
    float *keys = malloc((size_t)shape->max_entries * (size_t)dim * sizeof *keys);
    float *values = malloc((size_t)shape->max_entries * (size_t)dim * sizeof *values);
    int32_t *positions = malloc((size_t)shape->max_entries * sizeof *positions);
    int64_t entries = 0, pages = 0;
    ck_assert_int_eq(kv_tokens_seen(seq), plain->seen);
    for (int l = 0; l < shape->layers; l++) {
        for (int h = 0; h < shape->kv_heads; h++) {
            int count = plain->count[l * shape->kv_heads + h];
            const int32_t *wanted = plain_positions(plain, shape, l, h);
            struct kv_view view = kv_head(pool, seq, l, h);
            ck_assert_int_eq(view.entries, count);
            kv_read_head(pool, seq, l, h, keys, values, positions);
            for (int e = 0; e < count; e++) {
                const unsigned char *page = view.pages[e / KV_PAGE_ENTRIES];
                int lane = e % KV_PAGE_ENTRIES;
                /* Not an assertion each: Check tells its parent of every one, and these are millions. */
                int32_t in_page = ((const int32_t *)(page + fixture_page_bytes(shape)))[lane - KV_PAGE_ENTRIES];
                if (positions[e] != wanted[e] || in_page != wanted[e]) {
                    ck_abort_msg("layer %d head %d entry %d: expected position %d, got %d, in its page %d", l, h, e,
                                 wanted[e], positions[e], in_page);
                }
                for (int k = 0; k < dim; k++) {
                    float key = fixture_stored(shape, fixture_element(ROW_KEY, plain->sample, l, h, wanted[e], k));
                    float value = fixture_stored(shape, fixture_element(ROW_VALUE, plain->sample, l, h, wanted[e], k));
                    if (keys[e * dim + k] != key || fixture_number(shape, page, k * KV_PAGE_ENTRIES + lane) != key) {
                        ck_abort_msg("layer %d head %d entry %d: key[%d] is not that of position %d", l, h, e, k,
                                     wanted[e]);
                    }
                    if (values[e * dim + k] != value ||
                        fixture_number(shape, page, (KV_PAGE_ENTRIES + lane) * dim + k) != value) {
                        ck_abort_msg("layer %d head %d entry %d: value[%d] is not that of position %d", l, h, e, k,
                                     wanted[e]);
                    }
                }
            }
            entries += count;
            pages += (count + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES;
        }
    }
    ck_assert_int_eq(kv_seq_entries(seq), entries);
    ck_assert_int_eq(kv_seq_live_bytes(pool, seq), pages * fixture_page_bytes(shape));
    free(keys);
    free(values);
    free(positions);
}

static inline int fixture_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
