/* The scheduler and the engine's API on tiny-reasoner: endings, pages running out, cancelling, figures, calibration. */
#include <math.h>
#include "engine/internal.h"
#include "tests/unit/engine_tiny.h"

static struct engine *engine;
static struct wave_profile profile;
static struct tiny_prompts prompts;

static void open_with(int max_batch, int chunk, int64_t kv_bytes)
{
    engine = tiny_open("auto", max_batch, 1, chunk, kv_bytes);
    profile = tiny_profile(engine);
    prompts = tiny_prompts(engine, "data/chain-arith-narrow.jsonl", 16);
}

static void close_all(void)
{
    tiny_prompts_free(&prompts);
    engine_close(&engine);
    ck_assert_ptr_null(engine);
}

/* ---- figures ---- */

/* Attention by the entries held, the rest evenly; together the whole step. */
START_TEST(a_step_is_split_by_what_it_did)
{
    static const int64_t entries[] = {100, 300, 0};
    double share[3];
    step_split(1000000, 400000, entries, 3, share);
    ck_assert_double_eq_tol(share[0], 200 + 100, 1e-9);
    ck_assert_double_eq_tol(share[1], 200 + 300, 1e-9);
    ck_assert_double_eq_tol(share[2], 200, 1e-9);
    step_split(5000, 5000, entries + 1, 1, share);
    ck_assert_double_eq_tol(share[0], 5, 1e-9);
}
END_TEST

/* ---- endings ---- */

START_TEST(stop_and_length)
{
    open_with(4, 0, 0);
    struct request request = tiny_request(&prompts, 0, "full", 1, NULL);
    struct completion stopped = tiny_alone(engine, &request);
    ck_assert_int_eq(stopped.finish, FINISH_STOP);
    ck_assert_int_eq(stopped.output_ids[stopped.output_tokens - 1], 259); /* <|end|> */
    ck_assert_ptr_nonnull(strstr(stopped.text, "</think>"));
    ck_assert_ptr_nonnull(strstr(stopped.text, "\\boxed{"));
    ck_assert_ptr_null(strstr(stopped.text, "<|end|>"));
    ck_assert(stopped.thinking_tokens > 0 && stopped.thinking_tokens < stopped.output_tokens);
    ck_assert_str_eq(stopped.error, "");

    request.max_new_tokens = stopped.output_tokens - 1;
    struct completion cut = tiny_alone(engine, &request);
    ck_assert_int_eq(cut.finish, FINISH_LENGTH);
    ck_assert_int_eq(cut.output_tokens, stopped.output_tokens - 1);
    ck_assert_mem_eq(cut.output_ids, stopped.output_ids, (size_t)cut.output_tokens * sizeof *cut.output_ids);
    ck_assert_uint_ne(cut.output_hash, stopped.output_hash);

    request.max_new_tokens = 20;
    struct completion open = tiny_alone(engine, &request);
    ck_assert_int_eq(open.thinking_tokens, -1); /* never closed */

    request.max_new_tokens = stopped.output_tokens + 10;
    request.ignore_stop = 1;
    struct completion on = tiny_alone(engine, &request);
    ck_assert_int_eq(on.finish, FINISH_LENGTH);
    ck_assert_int_eq(on.output_tokens, stopped.output_tokens + 10);
    completion_free(&stopped);
    completion_free(&cut);
    completion_free(&open);
    completion_free(&on);
    close_all();
}
END_TEST

/* The context ends an output that nothing else does. */
START_TEST(context_cuts_the_output)
{
    open_with(2, 0, 0);
    struct request request = tiny_request(&prompts, 0, "streaming", 64, NULL);
    request.max_new_tokens = 100000;
    request.ignore_stop = 1;
    struct completion completion = tiny_alone(engine, &request);
    ck_assert_int_eq(completion.finish, FINISH_LENGTH);
    ck_assert_int_eq(completion.prompt_tokens + completion.output_tokens, engine_info(engine)->context_tokens);
    completion_free(&completion);
    close_all();
}
END_TEST

struct stream {
    int32_t ids[1000];
    int tokens;
    char text[4000];
    uint64_t cancel_at; /* tokens after which `victim` is cancelled; 0: never */
    uint64_t victim;
};

static void stream_token(void *user, uint64_t id, int32_t token, const char *text, size_t len)
{
    struct stream *stream = user;
    (void)id;
    stream->ids[stream->tokens++] = token;
    ck_assert_uint_lt(strlen(stream->text) + len, sizeof stream->text);
    strncat(stream->text, text, len);
    if (stream->cancel_at != 0 && stream->tokens == (int)stream->cancel_at) {
        ck_assert_int_eq(engine_cancel(engine, stream->victim), 0);
    }
}

START_TEST(tokens_arrive_as_they_come)
{
    open_with(4, 0, 0);
    struct stream stream = {.tokens = 0};
    struct request request = tiny_request(&prompts, 1, "full", 1, NULL);
    request.on_token = stream_token;
    request.user = &stream;
    struct completion completion = tiny_alone(engine, &request);
    ck_assert_int_eq(stream.tokens, completion.output_tokens);
    ck_assert_mem_eq(stream.ids, completion.output_ids, (size_t)stream.tokens * sizeof *stream.ids);
    ck_assert_str_eq(stream.text, completion.text);
    completion_free(&completion);
    close_all();
}
END_TEST

/* ---- cancelling ---- */

START_TEST(cancel_queued_running_and_from_a_callback)
{
    open_with(2, 0, 0);
    struct request request = tiny_request(&prompts, 0, "full", 1, NULL);
    struct completion whole = tiny_alone(engine, &request);
    struct stream stream = {.cancel_at = 30, .victim = 0};
    request.on_token = stream_token;
    request.user = &stream;
    tiny_submit(engine, &request);
    for (int i = 1; i < 4; i++) {
        request = tiny_request(&prompts, i, "full", 1, NULL);
        tiny_submit(engine, &request);
    }
    ck_assert_int_eq(engine_load(engine), 4);
    struct kvf_err err = {""};
    for (int step = 0; step < 10; step++) ck_assert_int_eq(engine_step(engine, &err), 0);
    ck_assert_int_eq(engine_cancel(engine, 1), 0); /* runs */
    ck_assert_int_eq(engine_cancel(engine, 3), 0); /* waits */
    ck_assert_int_eq(engine_cancel(engine, 1), KVF_ENOTFOUND);
    ck_assert_int_eq(engine_cancel(engine, 99), KVF_ENOTFOUND);
    ck_assert_int_eq(engine_load(engine), 2);
    tiny_run(engine);
    struct completion completion;
    int seen = 0;
    while (engine_poll(engine, &completion)) {
        seen++;
        if (completion.id == 2)
            ck_assert_int_eq(completion.finish, FINISH_STOP);
        else
            ck_assert_int_eq(completion.finish, FINISH_CANCELLED);
        if (completion.id == 0) {
            ck_assert_int_eq(completion.output_tokens, 30);
            ck_assert_mem_eq(completion.output_ids, whole.output_ids, 30 * sizeof *whole.output_ids);
        }
        if (completion.id == 1) ck_assert_int_gt(completion.output_tokens, 0);
        if (completion.id == 3) {
            ck_assert_int_eq(completion.output_tokens, 0);
            ck_assert_int_eq(completion.queue_us, -1);
            ck_assert_int_eq(completion.ttft_us, -1);
            ck_assert_str_eq(completion.text, "");
        }
        completion_free(&completion);
    }
    ck_assert_int_eq(seen, 4);
    completion_free(&whole);
    close_all();
}
END_TEST

/* ---- pages ---- */

/* Bytes of a pool of so many pages for tiny-reasoner. */
static int64_t bytes_of_pages(int64_t pages)
{
    return pages * 16 * (2 * 32 * 4 + 4);
}

START_TEST(sent_back_for_lack_of_pages)
{
    static const char *const policies[] = {"full", "rkv", "full", "reasonalloc"};
    open_with(8, 0, 0);
    struct completion alone[8];
    for (int i = 0; i < 8; i++) {
        struct request request = tiny_request(&prompts, i, policies[i % 4], 128, &profile);
        alone[i] = tiny_alone(engine, &request);
    }
    close_all();

    open_with(8, 40, bytes_of_pages(24 * 24 * 2)); /* two sequences of 384 entries */
    struct stream streams[8] = {{.tokens = 0}};
    for (int i = 0; i < 8; i++) {
        struct request request = tiny_request(&prompts, i, policies[i % 4], 128, &profile);
        request.on_token = stream_token;
        request.user = &streams[i];
        request.max_new_tokens = 400; /* half of it is set aside, all of it does not fit */
        tiny_submit(engine, &request);
    }
    tiny_run(engine);
    ck_assert_int_gt(engine_counters(engine).requeued, 0);
    struct completion completion;
    int seen = 0;
    while (engine_poll(engine, &completion)) {
        int i = (int)completion.id;
        tiny_same(&completion, &alone[i], "sent back");
        ck_assert_int_eq(completion.compactions, alone[i].compactions);
        ck_assert_int_eq(completion.evicted_entries, alone[i].evicted_entries);
        ck_assert_int_eq(streams[i].tokens, completion.output_tokens); /* none twice */
        ck_assert_mem_eq(streams[i].ids, completion.output_ids, (size_t)streams[i].tokens * sizeof(int32_t));
        ck_assert_str_eq(streams[i].text, completion.text);
        completion_free(&completion);
        completion_free(&alone[i]);
        seen++;
    }
    ck_assert_int_eq(seen, 8);
    close_all();
}
END_TEST

START_TEST(too_long_for_the_pool_alone)
{
    open_with(4, 0, bytes_of_pages(24 * 10)); /* one sequence of 160 entries */
    for (int i = 0; i < 3; i++) {
        struct request request = tiny_request(&prompts, i, i == 1 ? "rkv" : "full", 96, NULL);
        tiny_submit(engine, &request);
    }
    tiny_run(engine);
    struct completion completion;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(engine_poll(engine, &completion), 1);
        if (completion.id == 1) {
            ck_assert_msg(completion.finish != FINISH_ERROR, "%s", completion.error); /* 128 entries do fit */
        } else {
            ck_assert_int_eq(completion.finish, FINISH_ERROR);
            ck_assert_msg(strstr(completion.error, "kv cache") != NULL && strstr(completion.error, "240 pages") != NULL,
                          "%s", completion.error);
        }
        completion_free(&completion);
    }
    close_all();
}
END_TEST

/* ---- bad requests ---- */

static void refused(const struct request *request, const char *names)
{
    struct kvf_err err = {""};
    ck_assert_int_eq(engine_submit(engine, request, &err), KVF_EINVAL);
    ck_assert_msg(strstr(err.text, names) != NULL, "'%s' does not name '%s'", err.text, names);
    ck_assert_int_eq(engine_load(engine), 0);
}

START_TEST(bad_requests)
{
    open_with(2, 0, 0);
    const struct request good = tiny_request(&prompts, 0, "reasonalloc", 128, &profile);
    struct request request = good;
    int32_t *ids = calloc(3000, sizeof *ids);
    request.prompt_tokens = 0;
    refused(&request, "at least 1 token");
    request = good;
    request.prompt_ids = ids;
    request.prompt_tokens = 2048;
    refused(&request, "2048");
    request.prompt_tokens = 5;
    ids[3] = 264;
    refused(&request, "token 3");
    ids[3] = -1;
    refused(&request, "token 3");
    request = good;
    request.budget_tokens = 8;
    refused(&request, "budget");
    request = good;
    request.interval_tokens = 0;
    refused(&request, "interval");
    request = good;
    request.profile = NULL;
    refused(&request, "profile");
    request = good;
    struct wave_profile other = profile;
    memset(other.model_hash, 'a', 64);
    request.profile = &other;
    refused(&request, "aaaa");
    request = good;
    request.max_new_tokens = 0;
    refused(&request, "max new tokens");
    request = good;
    request.sampling = (struct sampling){.temperature = 1.0, .top_p = 0.0};
    refused(&request, "top-p");
    tiny_submit(engine, &good);
    struct kvf_err err = {""};
    ck_assert_int_eq(engine_submit(engine, &good, &err), KVF_EINVAL); /* the id runs */
    ck_assert_int_eq(engine_cancel(engine, good.id), 0);
    free(ids);
    close_all();
}
END_TEST

START_TEST(bad_options)
{
    struct engine_options good = {
        .model_folder = tiny_path("models/tiny-reasoner"), .kernels = "plain", .threads = 1, .max_batch = 1};
    struct kvf_err err = {""};
    struct engine_options options = good;
    options.kernels = "avx99";
    ck_assert_int_eq(engine_open(&options, &engine, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "plain"));
    ck_assert_ptr_null(engine);
    options = good;
    options.threads = 0;
    ck_assert_int_eq(engine_open(&options, &engine, &err), KVF_EINVAL);
    options = good;
    options.max_batch = 257;
    ck_assert_int_eq(engine_open(&options, &engine, &err), KVF_EINVAL);
    options = good;
    options.kv_bytes = 1;
    ck_assert_int_ne(engine_open(&options, &engine, &err), 0);
    options = good;
    options.model_folder = "/nowhere/at/all";
    ck_assert_int_ne(engine_open(&options, &engine, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/at/all"));
    engine_close(&engine);
}
END_TEST

/* ---- figures ---- */

START_TEST(figures_of_a_run)
{
    open_with(4, 0, 0);
    const struct engine_info *info = engine_info(engine);
    ck_assert_int_eq(info->kv_bytes_per_token, 2 * 8 * 3 * 32 * 4);
    ck_assert_int_eq(info->parameters, 3297984);
    ck_assert(info->weights_bytes > 6000000 && info->weights_bytes < 8000000);
    for (int i = 0; i < 4; i++) {
        struct request request = tiny_request(&prompts, i, i % 2 ? "rkv" : "full", 128, NULL);
        tiny_submit(engine, &request);
    }
    tiny_run(engine);
    struct completion completion;
    int64_t emitted = 0, compactions = 0;
    int longest = 0;
    while (engine_poll(engine, &completion)) {
        emitted += completion.output_tokens;
        compactions += completion.compactions;
        if (completion.output_tokens > longest) longest = completion.output_tokens;
        ck_assert_int_eq(completion.batch_max, 4);
        ck_assert(completion.batch_mean > 1.0 && completion.batch_mean <= 4.0);
        ck_assert(completion.queue_us >= 0 && completion.ttft_us > 0 && completion.prefill_us > 0);
        ck_assert(completion.ttft_us < completion.total_us);
        ck_assert(completion.decode_share_us > 0 && completion.decode_share_us < completion.total_us);
        int full_entries = completion.prompt_tokens + completion.output_tokens - 1;
        int64_t full_bytes = (int64_t)((full_entries + 15) / 16) * 24 * bytes_of_pages(1);
        if (completion.id % 2 == 0) {
            ck_assert_int_eq(completion.compactions, 0);
            ck_assert_int_eq(completion.compaction_us, 0);
            ck_assert_int_eq(completion.evicted_entries, 0);
            ck_assert_double_eq(completion.budget_achieved, -1.0);
            ck_assert_int_eq(completion.kv_live_peak_bytes, full_bytes);
        } else {
            ck_assert_int_gt(completion.compactions, 2);
            ck_assert_double_eq(completion.budget_achieved, 128.0);
            /* every compaction takes the 32 entries of each head that came since the last one */
            ck_assert_int_eq(completion.evicted_entries, (int64_t)completion.compactions * 24 * 32);
            ck_assert_int_eq(completion.kv_live_peak_bytes, (128 + 32) / 16 * 24 * bytes_of_pages(1));
        }
        ck_assert(completion.kv_live_mean_bytes > 0 && completion.kv_live_mean_bytes <= completion.kv_live_peak_bytes);
        completion_free(&completion);
    }
    struct engine_counters counters = engine_counters(engine);
    ck_assert_int_eq(counters.emitted_tokens, emitted);
    ck_assert_int_eq(counters.compactions, compactions);
    ck_assert_int_eq(counters.requeued, 0);
    ck_assert_int_ge(counters.steps, longest - 1);
    ck_assert(counters.prefill_us > 0 && counters.decode_us > 0 && counters.compaction_us > 0);
    close_all();
}
END_TEST

/* ---- calibration ---- */

START_TEST(calibration_comes_near_the_simulation)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { PROBES = 2, MOST_TOKENS = 60, FROM = 100, SIMULATED = 0 }; /* slow here: the paths, not the figures */
#else
    enum { PROBES = 8, MOST_TOKENS = 400, FROM = 256, SIMULATED = 1 };
#endif
    open_with(1, 0, 0);
    struct tiny_prompts probes = tiny_prompts(engine, "data/probes.jsonl", PROBES);
    struct calibration how = {
        .max_new_tokens = MOST_TOKENS, .from_tokens = FROM, .every_tokens = 32, .window_tokens = 8, .rho = 0.93};
    struct wave_profile measured, again;
    struct kvf_err err = {""};
    const int32_t *const *ids = (const int32_t *const *)probes.ids;
    ck_assert_msg(engine_calibrate(engine, ids, probes.tokens, PROBES, &how, &measured, &err) == 0, "%s", err.text);
    double mean = 0;
    for (int l = 0; l < 8; l++) {
        mean += measured.demand[l] / 8;
        ck_assert_msg(!SIMULATED || fabs(measured.demand[l] - profile.demand[l]) < 0.2, "layer %d: %g, simulation %g",
                      l, measured.demand[l], profile.demand[l]);
    }
    ck_assert_double_eq_tol(mean, 1.0, 1e-9);
    ck_assert_str_eq(measured.model_hash, engine_info(engine)->model_hash);
    ck_assert_int_eq(measured.layers, 8);
    ck_assert_int_eq(measured.kv_heads, 3);
    ck_assert_int_eq(measured.probes, PROBES);
    ck_assert_int_ge(measured.samples, PROBES);
    ck_assert_int_eq(engine_calibrate(engine, ids, probes.tokens, PROBES, &how, &again, &err), 0);
    ck_assert_mem_eq(&again, &measured, sizeof again);
    ck_assert_int_eq(profile_check(&measured, engine_info(engine)->model_hash, 8, 3, &err), 0);

    how.from_tokens = 2000;
    ck_assert_int_eq(engine_calibrate(engine, ids, probes.tokens, PROBES, &how, &again, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "2000"));
    how.from_tokens = FROM;
    how.rho = 1.5;
    ck_assert_int_eq(engine_calibrate(engine, ids, probes.tokens, PROBES, &how, &again, &err), KVF_EINVAL);
    ck_assert_int_eq(engine_check(engine, &err), 0);
    tiny_prompts_free(&probes);
    close_all();
}
END_TEST

int main(void)
{
    tiny_require();
    Suite *suite = suite_create("engine batch");
    TCase *tc = tcase_create("batch");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, stop_and_length);
    tcase_add_test(tc, context_cuts_the_output);
    tcase_add_test(tc, tokens_arrive_as_they_come);
    tcase_add_test(tc, cancel_queued_running_and_from_a_callback);
    tcase_add_test(tc, sent_back_for_lack_of_pages);
    tcase_add_test(tc, too_long_for_the_pool_alone);
    tcase_add_test(tc, bad_requests);
    tcase_add_test(tc, bad_options);
    tcase_add_test(tc, figures_of_a_run);
    tcase_add_test(tc, a_step_is_split_by_what_it_did);
    tcase_add_test(tc, calibration_comes_near_the_simulation);
    suite_add_tcase(suite, tc);
    return tiny_suite(suite);
}
