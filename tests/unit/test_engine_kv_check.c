/* kv_check finds what it is there for: each kind of damage, seeded into a sound pool, and none in the sound one. */
#include "engine/kv/kv_internal.h"
#include "tests/unit/kv_fixture.h"

static const struct kv_shape shape = {
    .layers = 2, .kv_heads = 2, .group = 1, .head_dim = 4, .window_tokens = 2, .max_entries = 64, .max_sequences = 2};

static struct kv_pool *pool;
static struct kv_seq *first, *second;

static void setup(void)
{
    pool = fixture_pool(&shape, 40);
    first = fixture_open(pool);
    second = fixture_open(pool);
    fixture_append(pool, &shape, first, 1, 33);
    fixture_append(pool, &shape, second, 2, 20);
    fixture_check(pool);
}

static void teardown(void)
{
    kv_pool_destroy(&pool);
}

static void damage_assert(const char *part)
{
    struct kvf_err err = {""};
    ck_assert_int_eq(kv_check(pool, &err), KVF_ECORRUPT);
    ck_assert_msg(strstr(err.text, part) != NULL, "expected \"%s\" in: %s", part, err.text);
}

START_TEST(page_in_two_lists)
{
    second->lists[3].pages[1] = first->lists[0].pages[2];
    damage_assert("sequence 1 layer 1 head 1: page");
    damage_assert("in another list");
}
END_TEST

START_TEST(page_twice_in_one_list)
{
    first->lists[2].pages[1] = first->lists[2].pages[0];
    damage_assert("in another list");
}
END_TEST

START_TEST(page_free_and_used)
{
    pool->free[pool->free_count - 1] = (int32_t)((first->lists[1].pages[0] - pool->slab) / pool->page_bytes);
    damage_assert("on the free list");
}
END_TEST

START_TEST(page_free_twice)
{
    pool->free[0] = pool->free[1];
    damage_assert("on the free list twice");
}
END_TEST

START_TEST(page_lost_from_the_free_list)
{
    pool->free_count--;
    damage_assert("is lost");
}
END_TEST

START_TEST(page_lost_from_a_list)
{
    first->lists[0].held--;
    first->lists[0].entries = 32;
    first->held--;
    damage_assert("is lost");
}
END_TEST

START_TEST(page_number_outside_the_slab)
{
    pool->free[3] = 40;
    damage_assert("free list entry 3");
    pool->free[3] = -1;
    damage_assert("free list entry 3");
}
END_TEST

START_TEST(page_pointer_outside_the_slab)
{
    first->lists[0].pages[0] += 1;
    damage_assert("not a page of the slab");
    first->lists[0].pages[0] = NULL;
    damage_assert("not a page of the slab");
    first->lists[0].pages[0] = pool->slab + pool->pages * pool->page_bytes;
    damage_assert("not a page of the slab");
}
END_TEST

START_TEST(length_beyond_its_pages)
{
    first->lists[1].entries = 49;
    damage_assert("expected 4 pages for 49 entries and room for 0, got 3");
}
END_TEST

START_TEST(length_short_of_its_pages)
{
    first->lists[1].entries = 32;
    damage_assert("expected 2 pages for 32 entries and room for 0, got 3");
}
END_TEST

START_TEST(room_without_pages)
{
    first->room[1] = 16;
    damage_assert("sequence 0 layer 1 head 0: expected 4 pages for 33 entries and room for 16, got 3");
}
END_TEST

START_TEST(length_out_of_range)
{
    first->lists[1].entries = 65;
    damage_assert("expected 0 to 64 entries, got 65");
    first->lists[1].entries = -1;
    damage_assert("got -1");
}
END_TEST

START_TEST(free_count_out_of_range)
{
    pool->free_count = 41;
    damage_assert("free list: expected 0 to 40");
}
END_TEST

START_TEST(positions_out_of_order)
{
    int32_t *position = kv_entry_position(pool, &second->lists[2], 17);
    ck_assert_int_eq(*position, 17);
    *position = 16;
    damage_assert("sequence 1 layer 1 head 0 entry 17");
    *position = 20;
    damage_assert("below 20, got 20");
    *position = 17;
    fixture_check(pool);
}
END_TEST

START_TEST(pages_of_a_closed_sequence)
{
    second->open = 0;
    damage_assert("closed sequence 1");
}
END_TEST

START_TEST(counter_off)
{
    first->held++;
    damage_assert("open sequence 0: expected 13 pages, its lists hold 12");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine kv check");
    TCase *tc = tcase_create("damage");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, page_in_two_lists);
    tcase_add_test(tc, page_twice_in_one_list);
    tcase_add_test(tc, page_free_and_used);
    tcase_add_test(tc, page_free_twice);
    tcase_add_test(tc, page_lost_from_the_free_list);
    tcase_add_test(tc, page_lost_from_a_list);
    tcase_add_test(tc, page_number_outside_the_slab);
    tcase_add_test(tc, page_pointer_outside_the_slab);
    tcase_add_test(tc, length_beyond_its_pages);
    tcase_add_test(tc, length_short_of_its_pages);
    tcase_add_test(tc, room_without_pages);
    tcase_add_test(tc, length_out_of_range);
    tcase_add_test(tc, free_count_out_of_range);
    tcase_add_test(tc, positions_out_of_order);
    tcase_add_test(tc, pages_of_a_closed_sequence);
    tcase_add_test(tc, counter_off);
    suite_add_tcase(suite, tc);
    return fixture_main(suite);
}
