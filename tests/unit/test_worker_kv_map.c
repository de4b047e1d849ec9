/* KV maps of made-up sequences: what is recorded, figures, grids, levels, text, JSON, the picture's cells; the colours'
 * order. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "worker/color_scale.h"
#include "worker/kv_map.h"
#include "worker/kv_plot.h"

static struct kv_map map;
static char *text;
static size_t length;

static void setup(void)
{
    kv_map_begin(&map, 2, 2);
}
static void teardown(void)
{
    kv_map_free(&map);
    free(text);
    text = NULL;
}

static void add(int tokens, bool after, int a, int b, int c, int d)
{
    kv_map_add(&map, tokens, after, (const int32_t[]){a, b, c, d});
}

/* Prompt of 4, compacted at 8, 10 and 12 to 6 a head, ends at 13. */
static void small_map(void)
{
    add(4, false, 4, 4, 4, 4);
    add(8, false, 8, 8, 8, 8);
    add(8, true, 2, 8, 7, 7);
    add(10, false, 4, 10, 9, 9);
    add(10, true, 3, 9, 6, 6);
    add(12, false, 5, 11, 8, 8);
    add(12, true, 4, 10, 5, 5);
    add(13, false, 5, 11, 6, 6);
}

static struct kv_grid grid_of(bool by_layer, int step, int most)
{
    struct kv_grid grid;
    struct kvf_err err = {""};
    ck_assert_msg(kv_grid_make(&map, by_layer, step, most, &grid, &err) == 0, "%s", err.text);
    return grid;
}

START_TEST(records)
{
    add(4, false, 4, 4, 4, 4);
    add(4, false, 4, 4, 4, 4); /* the point before a compaction right after prefill */
    ck_assert_int_eq(map.count, 1);
    add(4, true, 1, 2, 3, 4);
    add(4, false, 1, 2, 3, 4); /* the end right after it */
    ck_assert_int_eq(map.count, 2);
    add(4, true, 1, 1, 1, 1); /* a second compaction at the same place is one */
    ck_assert_int_eq(map.count, 3);
    ck_assert_int_eq(kv_map_compactions(&map), 2);
    for (int i = 5; i < 500; i++) add(i, false, i, i, i, i);
    ck_assert_int_eq(map.count, 498);
    ck_assert_int_eq(map.entries[4 * 497 + 3], 499);
    ck_assert_int_eq(map.entries[4 * 1 + 2], 3);
    add(4, false, 4, 4, 4, 4); /* sent back, started again */
    ck_assert_int_eq(map.count, 1);
}
END_TEST

START_TEST(figures)
{
    small_map();
    struct kv_map_figures head = kv_map_figures(&map, 0, 1), all = kv_map_figures(&map, 0, 4);
    ck_assert_int_eq(head.final, 5);
    ck_assert_int_eq(head.peak, 8);
    /* steps see 5 6 7 8, 3 4, 4 5, 5 */
    ck_assert_double_eq_tol(head.mean, 47.0 / 9, 1e-12);
    ck_assert_double_eq_tol(head.kept, 3, 1e-12);
    ck_assert_int_eq(all.final, 28);
    ck_assert_int_eq(all.peak, 32);
    ck_assert_double_eq_tol(all.mean, (20 + 24 + 28 + 32 + 28 + 32 + 28 + 32 + 28) / 9.0, 1e-12);
    ck_assert_double_eq_tol(all.kept, 24, 1e-12);
    ck_assert_int_eq(all.kept_least, 24);
    ck_assert_int_eq(all.kept_most, 24);
    /* the layers' peaks need not be at one time */
    ck_assert_int_eq(kv_map_figures(&map, 2, 2).peak, 18);
    ck_assert_int_eq(kv_map_figures(&map, 0, 2).peak, 16);
    double mean;
    int64_t peak;
    /* pages of 4: 8 entries a head take 2, 9 and more take 3 */
    ck_assert_int_eq(kv_map_bytes(&map, 1, 0, 4, 10), 80);
    ck_assert_int_eq(kv_map_bytes(&map, 2, 2, 4, 10), 100);
    kv_map_live(&map, 4, 10, &mean, &peak);
    ck_assert_int_eq(peak, 100);
    ck_assert_double_eq_tol(mean, (80 + 80 + 80 + 80 + 80 + 100 + 80 + 90 + 90) / 9.0, 1e-9);
}
END_TEST

START_TEST(figures_of_one_point)
{
    add(7, false, 7, 7, 7, 7);
    struct kv_map_figures all = kv_map_figures(&map, 0, 4);
    ck_assert_int_eq(all.final, 28);
    ck_assert_double_eq(all.mean, 28);
    ck_assert_double_eq(all.kept, -1);
    struct kv_grid grid = grid_of(false, 16, 80);
    ck_assert_int_eq(grid.columns, 1);
    ck_assert_int_eq(grid.tokens[0], 7);
    ck_assert_int_eq(grid.tokens[1], 8);
    ck_assert_double_eq(grid.cells[3], 7);
    kv_grid_free(&grid);
}
END_TEST

START_TEST(columns)
{
    static const int first[] = {4, 6, 8, 10, 12, 13};
    static const double head0[] = {4, 6, 2, 3, 4}, head1[] = {4, 6, 8, 9, 10}, layer1[] = {8, 12, 14, 12, 10};
    small_map();
    struct kv_grid grid = grid_of(false, 2, 80);
    ck_assert_int_eq(grid.rows, 4);
    ck_assert_int_eq(grid.columns, 5);
    ck_assert_int_eq(grid.merged, 1);
    ck_assert_double_eq(grid.top, 10);
    for (int c = 0; c <= 5; c++) ck_assert_int_eq(grid.tokens[c], first[c]);
    for (int c = 0; c < 5; c++) {
        ck_assert_double_eq(grid.cells[c], head0[c]);
        ck_assert_double_eq(grid.cells[5 + c], head1[c]);
    }
    kv_grid_free(&grid);
    grid = grid_of(true, 2, 80);
    ck_assert_int_eq(grid.rows, 2);
    for (int c = 0; c < 5; c++) ck_assert_double_eq(grid.cells[5 + c], layer1[c]);
    kv_grid_free(&grid);
}
END_TEST

START_TEST(columns_merge)
{
    small_map();
    struct kv_grid grid = grid_of(false, 2, 2); /* of 5: two and three */
    ck_assert_int_eq(grid.columns, 2);
    ck_assert_int_eq(grid.merged, 3);
    ck_assert_int_eq(grid.tokens[0], 4);
    ck_assert_int_eq(grid.tokens[1], 8);
    ck_assert_int_eq(grid.tokens[2], 13);
    ck_assert_double_eq(grid.cells[0], 5);
    ck_assert_double_eq(grid.cells[1], 3);
    ck_assert_double_eq(grid.cells[3], 9);
    kv_grid_free(&grid);
}
END_TEST

START_TEST(columns_of_full_cache)
{
    add(10, false, 10, 10, 10, 10);
    add(330, false, 330, 330, 330, 330);
    struct kv_grid grid = grid_of(false, 128, 80);
    ck_assert_int_eq(grid.columns, 32);
    ck_assert_double_eq(grid.cells[0], 10);
    ck_assert_double_eq(grid.cells[31], 320);
    kv_grid_free(&grid);
}
END_TEST

START_TEST(column_of_a_last_compaction)
{
    add(4, false, 4, 4, 4, 4);
    add(8, false, 8, 8, 8, 8);
    add(8, true, 6, 6, 6, 6);
    struct kv_grid grid = grid_of(false, 4, 80);
    ck_assert_int_eq(grid.columns, 2);
    ck_assert_double_eq(grid.cells[1], 6);
    ck_assert_int_eq(grid.tokens[2], 9);
    kv_grid_free(&grid);
}
END_TEST

START_TEST(nothing_recorded)
{
    struct kv_grid grid;
    struct kvf_err err = {""};
    ck_assert_int_eq(kv_grid_make(&map, false, 2, 80, &grid, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "KV map: nothing was decoded");
}
END_TEST

START_TEST(levels)
{
    ck_assert_int_eq(kv_map_level(0, 100, 10), 0);
    ck_assert_int_eq(kv_map_level(9.99, 100, 10), 0);
    ck_assert_int_eq(kv_map_level(10, 100, 10), 1);
    ck_assert_int_eq(kv_map_level(99, 100, 10), 9);
    ck_assert_int_eq(kv_map_level(100, 100, 10), 9);
    ck_assert_int_eq(kv_map_level(0, 0, 10), 0);
    ck_assert_int_eq(kv_map_level(5, 0, 10), 0);
}
END_TEST

static void print(int budget, bool by_layer, int width, enum kv_ink ink)
{
    struct kv_map_text how = {&map, budget, 2, by_layer, width, ink};
    struct kvf_err err = {""};
    free(text);
    FILE *out = open_memstream(&text, &length);
    ck_assert_msg(kv_map_print(&how, out, &err) == 0, "%s", err.text);
    fclose(out);
}

START_TEST(prints)
{
    small_map();
    print(6, false, 80, KV_INK_ASCII);
    ck_assert_ptr_nonnull(strstr(text, "    0    0  ====****::::----====        5      5.2       8\n"));
    ck_assert_ptr_nonnull(strstr(text, "         1  ====****%%%%@@@@@@@@       11      8.6      11\n"));
    ck_assert_ptr_nonnull(strstr(text, "tokens      4   6   8   10    13\n"));
    ck_assert_ptr_nonnull(strstr(text, "scale  0 | .:-=+*#%@| 10 entries, 1 a step\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n    0       16     13.8      16      12           1.00\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  all       28     28.0      32      24           1.00\n"));
    ck_assert_ptr_nonnull(strstr(text, "budget 6 x 2 layers x 2 heads = 24 entries; after every compaction 24\n"));
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_assert_ptr_null(strstr(text, "less than"));
    print(7, false, 80, KV_INK_ASCII);
    ck_assert_ptr_nonnull(strstr(text, "= 28 entries; after every compaction 24\nless than the budget: a layer held"));
    print(6, true, 80, KV_INK_BLOCKS);
    ck_assert_ptr_nonnull(strstr(text, "    1  ▅▅▅▅▇▇▇▇████▇▇▇▇▆▆▆▆       12     14.2      18\n"));
    print(0, false, 80, KV_INK_TRUE);
    ck_assert_ptr_nonnull(strstr(text, "\033[48;2;"));
    ck_assert_ptr_nonnull(strstr(text, "nothing is evicted"));
}
END_TEST

/* No line of plain text is wider than the page, where the page has room for the figures at all. */
START_TEST(fits)
{
    for (int p = 0, tokens = 8; p < 300; p++, tokens += 2) {
        if (p == 0) add(4, false, 4, 4, 4, 4);
        add(tokens, false, 8, 8, 8, 8);
        add(tokens, true, 6, 6, 6, 6);
    }
    for (int width = 64; width <= 200; width += 17) {
        print(6, false, width, KV_INK_ASCII);
        char *row = strstr(text, "         1  ");
        ck_assert_int_eq(strcspn(row, "\n"), width);
        ck_assert_ptr_nonnull(strstr(text, "mean of up to"));
        char *axis = strstr(text, "tokens      ");
        ck_assert_int_le(strcspn(axis, "\n"), width);
    }
    print(6, false, 10, KV_INK_ASCII);
}
END_TEST

START_TEST(as_json)
{
    small_map();
    json_t *object = kv_map_json(&map), *entries = json_object_get(object, "entries");
    ck_assert_int_eq(json_array_size(json_object_get(object, "tokens")), 8);
    ck_assert_int_eq(json_array_size(entries), 8);
    ck_assert(json_is_true(json_array_get(json_object_get(object, "after"), 2)));
    ck_assert(json_is_false(json_array_get(json_object_get(object, "after"), 3)));
    ck_assert_int_eq(json_integer_value(json_array_get(json_array_get(json_array_get(entries, 3), 0), 1)), 10);
    json_decref(object);
}
END_TEST

static int count_of(const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) count++;
    return count;
}

START_TEST(plots)
{
    struct kv_plot how = {&map, "a<b> & \x80", "rkv", 6, 2, false, 4, 10};
    struct kvf_err err = {""};
    small_map();
    FILE *out = open_memstream(&text, &length);
    ck_assert_int_eq(kv_plot_write(&how, out, &err), 0);
    fclose(out);
    ck_assert_int_eq(count_of("<rect class=\"cell\""), 4 * 5);
    ck_assert_ptr_nonnull(strstr(text, "a&lt;b&gt; &amp; \xef\xbf\xbd: rkv"));
    ck_assert_ptr_nonnull(strstr(text, "layer 0, head 1, from token 10: 9 entries"));
    ck_assert_ptr_nonnull(strstr(text, "budget 6 entries a head, interval 2 tokens, 3 compactions"));
    ck_assert_int_eq(count_of("<polyline"), 2);
    ck_assert_ptr_null(strstr(text, "nan"));
}
END_TEST

START_TEST(colors)
{
    double before = -1;
    unsigned char rgb[3];
    for (int i = 0; i <= 100; i++) {
        color_scale(i / 100.0, rgb);
        double light = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
        ck_assert_double_gt(light, before - 0.5); /* rounding to whole numbers */
        before = light;
    }
    ck_assert_int_gt(before, 200);
    color_scale(-3, rgb);
    ck_assert_int_lt(rgb[1], 40);
    ck_assert_int_eq(color_256((const unsigned char[]){0, 0, 0}), 16);
    ck_assert_int_eq(color_256((const unsigned char[]){255, 255, 255}), 231);
    ck_assert_int_eq(color_256((const unsigned char[]){250, 100, 130}), 16 + 36 * 5 + 6 * 1 + 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: KV map");
    TCase *tc = tcase_create("kv map");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, records);
    tcase_add_test(tc, figures);
    tcase_add_test(tc, figures_of_one_point);
    tcase_add_test(tc, columns);
    tcase_add_test(tc, columns_merge);
    tcase_add_test(tc, columns_of_full_cache);
    tcase_add_test(tc, column_of_a_last_compaction);
    tcase_add_test(tc, nothing_recorded);
    tcase_add_test(tc, levels);
    tcase_add_test(tc, prints);
    tcase_add_test(tc, fits);
    tcase_add_test(tc, as_json);
    tcase_add_test(tc, plots);
    tcase_add_test(tc, colors);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
