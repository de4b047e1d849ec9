/* Every policy really runs: each preset ends its problems without an error; the schedule is carried out; a smaller
 * budget makes room for more sequences in the same memory. */
#include "engine/internal.h"
#include "tests/unit/engine_tiny.h"

static struct engine *engine;
static struct wave_profile profile;
static struct tiny_prompts prompts;

static void open_with(int max_batch, int64_t kv_bytes)
{
    engine = tiny_open("auto", max_batch, 2, 0, kv_bytes);
    profile = tiny_profile(engine);
    prompts = tiny_prompts(engine, "data/chain-arith-narrow.jsonl", 16);
}

static void close_all(void)
{
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}

/* Long enough for every problem to end; under a sanitizer, which is slow, only for a compaction. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OUTPUT_TOKENS 70
#define BUDGET_CASES  0
#define PROBLEMS      1
#else
#define OUTPUT_TOKENS 700
#define BUDGET_CASES  4
#define PROBLEMS      4
#endif

static int presets(void)
{
    int count = 0;
    while (policy_preset_name(count) != NULL) count++;
    return count;
}

START_TEST(every_preset_ends_its_problems)
{
    int ended = 0, expected = PROBLEMS * presets();
    open_with(32, 0);
    for (int i = 0; i < expected; i++) {
        struct request request = tiny_request(&prompts, i % PROBLEMS, policy_preset_name(i / PROBLEMS), 96, &profile);
        request.id = (uint64_t)i;
        request.max_new_tokens = OUTPUT_TOKENS;
        tiny_submit(engine, &request);
    }
    tiny_run(engine);
    struct completion completion;
    for (; engine_poll(engine, &completion); ended++) {
        const char *name = policy_preset_name((int)completion.id / PROBLEMS);
        ck_assert_msg(completion.finish != FINISH_ERROR && completion.error[0] == '\0', "%s: %s", name,
                      completion.error);
        ck_assert_msg(completion.finish == FINISH_STOP || completion.output_tokens == OUTPUT_TOKENS, "%s: %d tokens",
                      name, completion.output_tokens);
        ck_assert_msg((completion.compactions > 0) == (completion.id >= PROBLEMS), "%s: %d compactions", name,
                      completion.compactions);
        if (completion.compactions > 0) {
            /* A plan may give a layer more than it holds at the first compaction. */
            ck_assert_msg(completion.budget_achieved > 80 && completion.budget_achieved <= 96, "%s: %g entries", name,
                          completion.budget_achieved);
        }
        completion_free(&completion);
    }
    ck_assert_int_eq(ended, expected);
    close_all();
}
END_TEST

/* ---- the schedule ---- */

/* Runs one request to its end; after every step, how many entries a head holds on average. */
static struct completion entries_watch(const char *name, int budget, int interval, int tokens, double *entries)
{
    struct kvf_err err = {""};
    struct request request = tiny_request(&prompts, 0, name, budget, &profile);
    request.interval_tokens = interval;
    request.max_new_tokens = tokens;
    request.ignore_stop = 1;
    tiny_submit(engine, &request);
    for (;;) {
        ck_assert_int_eq(engine_step(engine, &err), 0);
        if (engine->running_count == 0) break;
        const struct kv_seq *seq = engine->running[0]->seq;
        entries[kv_tokens_seen(seq)] = (double)kv_seq_entries(seq) / 24;
    }
    struct completion completion;
    ck_assert_int_eq(engine_poll(engine, &completion), 1);
    return completion;
}

START_TEST(prompt_is_compacted_when_the_policy_says)
{
    static double entries[2048];
    open_with(1, 0);
    int prompt = prompts.tokens[0];
    ck_assert_int_gt(prompt, 40);
    struct completion completion = entries_watch("rkv", 32, 16, 60, entries);
    for (int i = 1; i < 16; i++) ck_assert_double_eq(entries[prompt + i], prompt + i);
    ck_assert_double_eq(entries[prompt + 16], 32);
    ck_assert_double_eq(entries[prompt + 31], 47);
    ck_assert_double_eq(entries[prompt + 32], 32);
    completion_free(&completion);

    completion = entries_watch("rkv:prompt=at-prefill", 32, 16, 60, entries);
    for (int i = 1; i < 16; i++) ck_assert_double_eq(entries[prompt + i], 32 + i);
    ck_assert_double_eq(entries[prompt + 16], 32);
    ck_assert_int_eq(completion.kv_live_peak_bytes, (prompt + 15) / 16 * 24 * 16 * (2 * 32 * 4 + 4));
    completion_free(&completion);
    close_all();
}
END_TEST

START_TEST(protected_prompt_stays)
{
    struct kvf_err err = {""};
    open_with(1, 0);
    int prompt = prompts.tokens[0];
    struct request request = tiny_request(&prompts, 0, "streaming:protect-prompt=1,sinks=0", prompt + 24, NULL);
    request.interval_tokens = 8;
    request.max_new_tokens = 200;
    request.ignore_stop = 1;
    tiny_submit(engine, &request);
    static int32_t positions[2048];
    for (;;) {
        ck_assert_int_eq(engine_step(engine, &err), 0);
        if (engine->running_count == 0) break;
        kv_read_head(engine->kv, engine->running[0]->seq, 5, 1, NULL, NULL, positions);
        for (int i = 0; i < prompt; i++) ck_assert_int_eq(positions[i], i);
    }
    struct completion completion;
    ck_assert_int_eq(engine_poll(engine, &completion), 1);
    ck_assert_int_eq(completion.finish, FINISH_LENGTH);
    ck_assert_int_gt(completion.compactions, 15);
    completion_free(&completion);

    close_all();
}
END_TEST

static struct request protected_request(const char *name, int budget, int max_new_tokens)
{
    struct request request = tiny_request(&prompts, 0, name, budget, &profile);
    request.interval_tokens = 16;
    request.max_new_tokens = max_new_tokens;
    request.ignore_stop = 1;
    return request;
}

static int compactions_of(const struct request *request)
{
    struct completion completion = tiny_alone(engine, request);
    ck_assert_msg(completion.finish == FINISH_LENGTH, "%s: %s", request->policy.name, completion.error);
    const int compactions = (int)completion.compactions;
    completion_free(&completion);
    return compactions;
}

/* Refused before a token is decoded, with the budget that is enough: with one less it is refused too, with that it runs
 * through its compactions. */
START_TEST(protected_prompt_that_does_not_fit_is_refused)
{
    static const char *const names[] = {"rkv:protect-prompt=1", "streaming:protect-prompt=1,sinks=0",
                                        "reasonalloc:protect-prompt=1,window=16",
                                        "pyramid-rkv:protect-prompt=1,pyramid-beta=3"};
    struct kvf_err err = {""};
    struct request request;
    open_with(1, 0);
    const int prompt = prompts.tokens[0];
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        int budget = 0;
        char words[96];
        request = protected_request(names[i], prompt, 200);
        ck_assert_int_eq(engine_submit(engine, &request, &err), KVF_EINVAL);
        snprintf(words, sizeof words, ": the prompt of %d tokens does not fit: budget %d leaves a head ", prompt,
                 prompt);
        ck_assert_msg(strncmp(err.text, "policy ", 7) == 0 && strstr(err.text, words) != NULL, "%s", err.text);
        ck_assert_msg(sscanf(strstr(err.text, "; ") + 2, "budget %d is enough", &budget) == 1, "%s", err.text);
        if (i < 2) ck_assert_int_eq(budget, prompt + 8 + 1);
        request = protected_request(names[i], budget - 1, 200);
        ck_assert_int_eq(engine_submit(engine, &request, &err), KVF_EINVAL);
        request = protected_request(names[i], budget, 200);
        ck_assert_int_gt(compactions_of(&request), 0);
    }
    /* Sinks that reach past the prompt have their room anyway. */
    request = protected_request("ada-rkv:protect-prompt=1,sinks=100", 109, 200);
    ck_assert_int_gt(compactions_of(&request), 0);
    /* An output that ends before the first compaction is due needs no room. */
    request = protected_request("rkv:protect-prompt=1", prompt, 17);
    ck_assert_int_eq(compactions_of(&request), 0);
    request = protected_request("rkv:protect-prompt=1", prompt, 18);
    ck_assert_int_eq(engine_submit(engine, &request, &err), KVF_EINVAL);
    request = protected_request("dynamic:protect-prompt=1", prompt, 200);
    ck_assert_int_eq(engine_submit(engine, &request, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "is the least that can be enough"));
    close_all();
}
END_TEST

START_TEST(nothing_goes_after_thinking)
{
    static double with[2048], without[2048];
    open_with(1, 0);
    int prompt = prompts.tokens[0], at = 0;
    /* A budget at which this problem is still solved, so that the tag comes. */
    struct completion a = entries_watch("rkv:stop-after-think=1", 256, 8, 700, with);
    struct completion b = entries_watch("rkv", 256, 8, 700, without);
    ck_assert_int_gt(a.thinking_tokens, 0);
    ck_assert_int_eq(a.thinking_tokens, b.thinking_tokens);
    ck_assert_int_lt(a.compactions, b.compactions);
    /* The step that draws the tag's last token has one fewer in the cache. */
    int closed = prompt + a.thinking_tokens - 1;
    for (at = prompt + 1; at < closed; at++) ck_assert_double_eq(with[at], without[at]);
    for (at = closed; at < prompt + 699 - 1; at++) ck_assert_double_eq(with[at + 1], with[at] + 1);
    ck_assert_double_le(without[prompt + 690], 256 + 8);
    completion_free(&a);
    completion_free(&b);
    close_all();
}
END_TEST

/* ---- admission ---- */

static int widest_batch(const char *name, int budget)
{
    int widest = 0, ended = 0;
    open_with(16, 3 << 20);
    for (int i = 0; i < 8; i++) {
        struct request request = tiny_request(&prompts, i, name, budget, &profile);
        request.max_new_tokens = 300;
        request.ignore_stop = 1;
        tiny_submit(engine, &request);
    }
    tiny_run(engine);
    struct completion completion;
    for (; engine_poll(engine, &completion); ended++) {
        ck_assert_msg(completion.finish == FINISH_LENGTH, "%s", completion.error);
        if (completion.batch_max > widest) widest = completion.batch_max;
        completion_free(&completion);
    }
    ck_assert_int_eq(ended, 8);
    ck_assert_int_eq(engine_counters(engine).requeued, 0); /* what was set aside was enough */
    close_all();
    return widest;
}

START_TEST(smaller_budgets_make_larger_batches)
{
    static const char *const names[] = {"rkv", "reasonalloc", "dynamic", "h2o:prompt=at-prefill"};
    int at_256 = widest_batch(names[_i], 256), at_128 = widest_batch(names[_i], 128),
        at_64 = widest_batch(names[_i], 64);
    printf("%s: 3 MiB of cache hold %d, %d, %d sequences at budgets 256, 128, 64\n", names[_i], at_256, at_128, at_64);
    ck_assert_int_ge(at_256, 1);
    ck_assert_int_gt(at_128, at_256);
    ck_assert_int_gt(at_64, at_128);
}
END_TEST

int main(void)
{
    tiny_require();
    Suite *suite = suite_create("engine policies");
    TCase *tc = tcase_create("policies");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, every_preset_ends_its_problems);
    tcase_add_test(tc, prompt_is_compacted_when_the_policy_says);
    tcase_add_test(tc, protected_prompt_stays);
    tcase_add_test(tc, protected_prompt_that_does_not_fit_is_refused);
    tcase_add_test(tc, nothing_goes_after_thinking);
    tcase_add_loop_test(tc, smaller_budgets_make_larger_batches, 0, BUDGET_CASES);
    suite_add_tcase(suite, tc);
    return tiny_suite(suite);
}
