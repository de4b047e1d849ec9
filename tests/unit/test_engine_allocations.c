/* A decode step allocates nothing, whatever the policy: every call of the C library's allocator is counted, in this
 * program and in the libraries that it loads, while running sequences decode and are compacted.
 *
 * Left out: engine_submit (copies the request, and makes what a policy is the first to need), the steps that prefill,
 * the steps in which a request ends and its completion is made (engine_poll), and the first compactions (warm-up). */
#include <malloc.h>
#include <stdatomic.h>
#include "engine/internal.h"
#include "tests/unit/engine_tiny.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0 /* their allocator stands where ours would */
#else
#define COUNTS 1
#endif

static atomic_int counting, allocations;

#if COUNTS
static void count(void)
{
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t members, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t members, size_t size)
{
    count();
    return __libc_calloc(members, size);
}

void *realloc(void *old, size_t size)
{
    count();
    return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    *out = memalign(alignment, size);
    return *out == NULL;
}
#endif

static void token_seen(void *user, uint64_t id, int32_t token, const char *text, size_t len)
{
    (void)id, (void)token, (void)text, (void)len;
    ++*(int *)user;
}

#define RUNS   4
#define BUDGET 48

START_TEST(allocator_is_counted)
{
    atomic_store(&counting, 1);
    void *volatile a = malloc(100), *volatile b = calloc(10, 10), *volatile c = aligned_alloc(64, 128);
    a = realloc(a, 200);
    atomic_store(&counting, 0);
    free(a);
    free(b);
    free(c);
    ck_assert_int_eq(atomic_load(&allocations), 4);
}
END_TEST

/* Greedy and drawn with every filter, with someone who listens. */
START_TEST(decode_step_allocates_nothing)
{
    struct kvf_err err = {""};
    struct engine *engine = tiny_open("auto", RUNS, 2, 0, 0);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith-narrow.jsonl", RUNS);
    int tokens = 0, steps = 0;
    for (int i = 0; i < RUNS; i++) {
        struct request request = tiny_request(&prompts, i, policy_preset_name(_i), BUDGET, &profile);
        if (i % 2) request.sampling = (struct sampling){.temperature = 1.0, .top_p = 0.9, .top_k = 40};
        request.interval_tokens = 8 + i;
        request.max_new_tokens = 80;
        request.ignore_stop = 1;
        request.on_token = token_seen;
        request.user = &tokens;
        tiny_submit(engine, &request);
    }
    while (tokens < RUNS * 24) ck_assert_int_eq(engine_step(engine, &err), 0);
    int64_t before = engine_counters(engine).compactions;
    atomic_store(&allocations, 0);
    while (tokens < RUNS * 70) {
        atomic_store(&counting, 1);
        int rc = engine_step(engine, &err);
        atomic_store(&counting, 0);
        ck_assert_int_eq(rc, 0);
        steps++;
    }
    ck_assert_int_ge(steps, 40);
    ck_assert_int_eq(engine_load(engine), RUNS); /* none has ended */
    if (_i > 0) ck_assert_int_ge(engine_counters(engine).compactions - before, 3 * RUNS);
    ck_assert_msg(atomic_load(&allocations) == 0, "%s: %d allocations in %d steps", policy_preset_name(_i),
                  atomic_load(&allocations), steps);
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}
END_TEST

int main(void)
{
    tiny_require();
    if (!COUNTS) {
        printf("skip: allocations are not counted under a sanitizer\n");
        return 77;
    }
    int presets = 0;
    while (policy_preset_name(presets) != NULL) presets++;
    Suite *suite = suite_create("engine allocations");
    TCase *tc = tcase_create("allocations");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, allocator_is_counted);
    tcase_add_loop_test(tc, decode_step_allocates_nothing, 0, presets);
    suite_add_tcase(suite, tc);
    return tiny_suite(suite);
}
