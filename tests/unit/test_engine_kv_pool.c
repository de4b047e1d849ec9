/* Pages and sequences without compaction: what is put is read back, room is all or nothing, pages return. */
#include "tests/unit/kv_fixture.h"

static const struct kv_shape shape = {
    .layers = 2, .kv_heads = 3, .group = 2, .head_dim = 8, .window_tokens = 5, .max_entries = 100, .max_sequences = 3};
#define LISTS 6

/* First a prompt of _i tokens at once, then one by one: lengths on both sides of every page boundary. */
START_TEST(page_boundaries)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 4);
    struct kv_seq *seq = fixture_open(pool);
    struct plain plain = plain_new(&shape, 7);
    fixture_append(pool, &shape, seq, 7, _i);
    plain_append(&plain, &shape, _i);
    while (plain.seen < 50) {
        plain_compare(&plain, &shape, pool, seq);
        fixture_check(pool);
        int pages = (plain.seen + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES;
        ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * (4 - pages));
        fixture_append(pool, &shape, seq, 7, 1);
        plain_append(&plain, &shape, 1);
    }
    plain_free(&plain);
    kv_seq_close(pool, &seq);
    ck_assert_ptr_null(seq);
    ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * 4);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(reserve_is_all_or_nothing)
{
    /* Three pages a list less one: 48 tokens fit everywhere but in the last list. */
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 3 - 1);
    struct kv_seq *seq = fixture_open(pool);
    struct plain plain = plain_new(&shape, 3);
    ck_assert_int_eq(kv_reserve(pool, seq, 33), KVF_ENOMEM);
    ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * 3 - 1);
    ck_assert_int_eq(kv_seq_live_bytes(pool, seq), 0);
    fixture_check(pool);

    fixture_append(pool, &shape, seq, 3, 32);
    plain_append(&plain, &shape, 32);
    int64_t left = kv_pool_free_pages(pool);
    ck_assert_int_eq(left, LISTS - 1);
    ck_assert_int_eq(kv_reserve(pool, seq, 1), KVF_ENOMEM);
    ck_assert_int_eq(kv_pool_free_pages(pool), left);
    fixture_check(pool);
    plain_compare(&plain, &shape, pool, seq);
    plain_free(&plain);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(reserve_twice_sets_aside_once)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 4);
    struct kv_seq *seq = fixture_open(pool);
    struct plain plain = plain_new(&shape, 4);
    ck_assert_int_eq(kv_reserve(pool, seq, 17), 0);
    ck_assert_int_eq(kv_reserve(pool, seq, 17), 0);
    ck_assert_int_eq(kv_reserve(pool, seq, 3), 0);
    ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * 2);
    ck_assert_int_eq(kv_seq_live_bytes(pool, seq), LISTS * 2 * fixture_page_bytes(&shape));
    fixture_check(pool);
    fixture_put(pool, &shape, seq, 4, 10);
    fixture_check(pool);
    fixture_put(pool, &shape, seq, 4, 7);
    plain_append(&plain, &shape, 17);
    plain_compare(&plain, &shape, pool, seq);
    fixture_check(pool);
    plain_free(&plain);
    kv_seq_close(pool, &seq);
    kv_pool_destroy(&pool);
}
END_TEST

/* Room that nobody used is no loss either. */
START_TEST(close_returns_reserved_pages)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 4);
    struct kv_seq *seq = fixture_open(pool);
    ck_assert_int_eq(kv_reserve(pool, seq, 64), 0);
    ck_assert_int_eq(kv_pool_free_pages(pool), 0);
    kv_seq_close(pool, &seq);
    ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * 4);
    fixture_check(pool);
    seq = fixture_open(pool);
    ck_assert_int_eq(kv_tokens_seen(seq), 0);
    ck_assert_int_eq(kv_seq_entries(seq), 0);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(context_is_the_limit)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 20);
    struct kv_seq *seq = fixture_open(pool);
    ck_assert_int_eq(kv_reserve(pool, seq, 101), KVF_ENOMEM);
    fixture_append(pool, &shape, seq, 5, 100);
    ck_assert_int_eq(kv_reserve(pool, seq, 1), KVF_ENOMEM);
    ck_assert_int_eq(kv_reserve(pool, seq, INT32_MAX), KVF_ENOMEM);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

/* One sequence takes what is left, another waits, and goes on when the first is closed. */
START_TEST(exhausted_and_recovered)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 5);
    struct kv_seq *first = fixture_open(pool), *second = fixture_open(pool);
    struct plain plain = plain_new(&shape, 22);
    fixture_append(pool, &shape, first, 11, 60);
    fixture_append(pool, &shape, second, 22, 16);
    plain_append(&plain, &shape, 16);
    ck_assert_int_eq(kv_pool_free_pages(pool), 0);
    ck_assert_int_eq(kv_reserve(pool, second, 1), KVF_ENOMEM);
    ck_assert_int_eq(kv_reserve(pool, first, 4), 0); /* the rest of its last pages */
    kv_seq_close(pool, &first);
    fixture_check(pool);
    fixture_append(pool, &shape, second, 22, 64);
    plain_append(&plain, &shape, 64);
    plain_compare(&plain, &shape, pool, second);
    ck_assert_int_eq(kv_pool_peak_pages(pool), LISTS * 5);
    fixture_check(pool);
    plain_free(&plain);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(sequences_are_limited)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 4);
    struct kv_seq *open[3], *more = NULL;
    struct kvf_err err = {""};
    for (int i = 0; i < 3; i++) open[i] = fixture_open(pool);
    ck_assert_int_eq(kv_seq_open(pool, NULL, &more, &err), KVF_ENOMEM);
    ck_assert_ptr_null(more);
    ck_assert_ptr_nonnull(strstr(err.text, "3"));
    kv_seq_close(pool, &open[1]);
    more = fixture_open(pool);
    kv_seq_close(pool, &open[0]);
    kv_seq_close(pool, &open[2]);
    kv_seq_close(pool, &more);
    kv_seq_close(pool, &more);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

/* The ring after chunks shorter than, as long as and longer than the window; _i: size of the chunks. */
START_TEST(queries_are_the_last_rows)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 4);
    struct kv_seq *seq = fixture_open(pool);
    int queries = shape.kv_heads * shape.group, width = queries * shape.head_dim;
    float *out = malloc((size_t)(shape.window_tokens * width) * sizeof *out),
          *wanted = malloc((size_t)width * sizeof *out);
    ck_assert_int_eq(kv_queries(pool, seq, 0, 99, out), 0);
    for (int seen = _i; seen <= 40; seen += _i) {
        fixture_append(pool, &shape, seq, 9, _i);
        for (int l = 0; l < shape.layers; l++) {
            int rows = seen < shape.window_tokens ? seen : shape.window_tokens;
            ck_assert_int_eq(kv_queries(pool, seq, l, 99, out), rows);
            for (int r = 0; r < rows; r++) {
                fixture_rows(ROW_QUERY, 9, l, queries, shape.head_dim, seen - rows + r, 1, wanted);
                ck_assert_mem_eq(out + r * width, wanted, (size_t)width * sizeof *wanted);
            }
        }
    }
    free(out);
    free(wanted);
    /* A closed sequence leaves no queries to the next. */
    kv_seq_close(pool, &seq);
    seq = fixture_open(pool);
    float none[1];
    ck_assert_int_eq(kv_queries(pool, seq, 1, 99, none), 0);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(figures)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 20);
    ck_assert_int_eq(kv_pool_reserved_bytes(pool), LISTS * 20 * fixture_page_bytes(&shape));
    ck_assert_int_eq(kv_pages_needed(pool, 1), LISTS);
    ck_assert_int_eq(kv_pages_needed(pool, 16), 11); /* five lists of 17 entries and one of 11 */
    ck_assert_int_eq(kv_pages_needed(pool, 17), LISTS * 2);
    ck_assert_int_eq(kv_pages_needed(pool, 100), LISTS * 7);
    ck_assert_int_eq(kv_pages_needed(pool, INT32_MAX), LISTS * 7);

    int64_t least = (int64_t)shape.max_sequences * shape.layers * shape.window_tokens * 6 * 8 * 4 /* rings */
                    + 3 * 100 * 8 * 4 /* gathered keys */;
    ck_assert_int_gt(kv_pool_workspace_bytes(pool), least);
    kv_pool_destroy(&pool);
    ck_assert_ptr_null(pool);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(bad_pools_are_refused)
{
    struct kv_pool *pool = NULL;
    struct kvf_err err = {""};
    ck_assert_int_eq(kv_pool_new(&shape, LISTS * fixture_page_bytes(&shape) - 1, &pool, &err), KVF_EINVAL);
    ck_assert_ptr_null(pool);
    ck_assert_ptr_nonnull(strstr(err.text, "bytes"));
    ck_assert_int_eq(kv_pool_new(&shape, -1, &pool, &err), KVF_EINVAL);
    ck_assert_int_eq(kv_pool_new(&shape, INT64_MAX, &pool, &err), KVF_EINVAL);
    const size_t fields[] = {offsetof(struct kv_shape, layers),        offsetof(struct kv_shape, kv_heads),
                             offsetof(struct kv_shape, group),         offsetof(struct kv_shape, head_dim),
                             offsetof(struct kv_shape, window_tokens), offsetof(struct kv_shape, max_entries),
                             offsetof(struct kv_shape, max_sequences)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const int values[] = {0, -1, INT32_MIN, INT32_MAX};
        for (int v = 0; v < 4; v++) {
            struct kv_shape bad = shape;
            memcpy((char *)&bad + fields[i], &values[v], sizeof values[v]);
            ck_assert_int_eq(kv_pool_new(&bad, 1 << 20, &pool, &err), KVF_EINVAL);
            ck_assert_ptr_null(pool);
        }
    }
    struct kv_shape wide = shape;
    wide.layers = wide.kv_heads = 1 << 20;
    ck_assert_int_eq(kv_pool_new(&wide, 1 << 20, &pool, &err), KVF_EINVAL);
    /* More work space than any machine has is short memory, not a crash. */
    struct kv_shape huge = shape;
    huge.max_sequences = huge.window_tokens = huge.head_dim = 1 << 24;
    ck_assert_int_eq(kv_pool_new(&huge, (int64_t)1 << 40, &pool, &err), KVF_ENOMEM);
    ck_assert_ptr_null(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine kv pool");
    TCase *tc = tcase_create("pool");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, page_boundaries, 1, 35);
    tcase_add_test(tc, reserve_is_all_or_nothing);
    tcase_add_test(tc, reserve_twice_sets_aside_once);
    tcase_add_test(tc, close_returns_reserved_pages);
    tcase_add_test(tc, context_is_the_limit);
    tcase_add_test(tc, exhausted_and_recovered);
    tcase_add_test(tc, sequences_are_limited);
    tcase_add_loop_test(tc, queries_are_the_last_rows, 1, 14);
    tcase_add_test(tc, figures);
    tcase_add_test(tc, bad_pools_are_refused);
    suite_add_tcase(suite, tc);
    return fixture_main(suite);
}
