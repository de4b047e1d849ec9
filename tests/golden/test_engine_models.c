/* The decoder against the outputs of an independent implementation: logits, hidden states, greedy continuations; and
 * tiny-reasoner's 40 whole answers. Every kernel set that this machine runs. */
#include "tests/golden/engine_reference.h"
#include "engine/engine.h"

/* bf16 activations cost up to 0.077 in the reference's own measurement. */
static double tolerance_of(const char *kernels)
{
    return strcmp(kernels, "avx512bf16") == 0 ? 0.15 : 1e-4;
}

static struct engine *open_folder(const char *folder, const char *kernels, const char *kv_type, int max_batch,
                                  int threads, int chunk)
{
    struct engine_options options = {.model_folder = folder,
                                     .kernels = kernels,
                                     .kv_type = kv_type,
                                     .threads = threads,
                                     .max_batch = max_batch,
                                     .prefill_chunk_tokens = chunk,
                                     .kv_bytes = 256 << 20};
    struct engine *engine = NULL;
    struct kvf_err err = {""};
    ck_assert_msg(engine_open(&options, &engine, &err) == 0, "%s", err.text);
    char name[64];
    snprintf(name, sizeof name, "%s%s", kernels, strcmp(kv_type, "bf16") == 0 ? "+kv-bf16" : "");
    ck_assert_str_eq(engine_info(engine)->kernel_set, name);
    return engine;
}

static void logits_compare(const float *got, const json_t *expected, double tolerance, const char *what)
{
    int count;
    double *values = reference_reals(expected, &count);
    double worst = 0;
    for (int i = 0; i < count; i++) {
        double off = fabs((double)got[i] - values[i]);
        worst = off > worst || isnan(off) ? off : worst;
    }
    ck_assert_msg(worst <= tolerance, "%s: off by %g, allowed %g", what, worst, tolerance);
    free(values);
}

static void hidden_check(const float *hidden, const struct engine_info *info, const json_t *expected, double tolerance,
                         const char *what)
{
    ck_assert_uint_eq(json_array_size(expected), (size_t)info->layers + 2);
    for (size_t stage = 0; stage < json_array_size(expected); stage++) {
        const json_t *record = json_array_get(expected, stage);
        logits_compare(hidden + (int64_t)stage * info->hidden, reference_get(record, "last_position_first8"), tolerance,
                       what);
    }
}

/* The five largest logits of every position, each from its own pass over the prefix. */
static void top5_check(struct engine *engine, const int32_t *ids, const json_t *expected, double tolerance)
{
    int vocab = engine_info(engine)->vocab;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    for (size_t at = 0; at < json_array_size(expected); at++) {
        const json_t *record = json_array_get(expected, at);
        struct kvf_err err = {""};
        ck_assert_msg(engine_logits(engine, ids, (int)at + 1, logits, NULL, &err) == 0, "%s", err.text);
        int count;
        double *values = reference_reals(reference_get(record, "logits"), &count);
        int32_t *best = reference_ids(reference_get(record, "ids"), &count);
        for (int i = 0; i < count; i++) {
            ck_assert_msg(fabs((double)logits[best[i]] - values[i]) <= tolerance,
                          "position %zu: id %d: %g, expected %g", at, best[i], (double)logits[best[i]], values[i]);
        }
        for (int id = 0; id < vocab; id++) {
            int listed = 0;
            for (int i = 0; i < count; i++) listed |= best[i] == id;
            ck_assert(listed || (double)logits[id] <= values[count - 1] + tolerance);
        }
        free(values);
        free(best);
    }
    free(logits);
}

static void greedy_check(struct engine *engine, const int32_t *ids, int count, const json_t *greedy, double margin,
                         const char *what)
{
    int steps;
    int32_t *expected = reference_ids(reference_get(greedy, "ids"), &steps);
    double *margins = reference_reals(reference_get(greedy, "margins"), &steps);
    struct kvf_err err = {""};
    struct request request = {.id = 1,
                              .prompt_ids = ids,
                              .prompt_tokens = count,
                              .budget_tokens = 1,
                              .interval_tokens = 1,
                              .max_new_tokens = steps,
                              .ignore_stop = 1};
    ck_assert_int_eq(policy_parse("full", &request.policy, &err), 0);
    ck_assert_msg(engine_submit(engine, &request, &err) == 0, "%s", err.text);
    while (engine_step(engine, &err) == 0) {
    }
    struct completion completion;
    ck_assert_int_eq(engine_poll(engine, &completion), 1);
    ck_assert_msg(completion.finish == FINISH_LENGTH, "%s: %s", what, completion.error);
    ck_assert_int_eq(completion.output_tokens, steps);
    for (int i = 0; i < steps && margins[i] > margin; i++) {
        ck_assert_msg(completion.output_ids[i] == expected[i], "%s: step %d: id %d, expected %d", what, i,
                      completion.output_ids[i], expected[i]);
    }
    completion_free(&completion);
    free(margins);
    free(expected);
}

static const char *const models[] = {"llama3-rope", "llama-tied"};

/* Once with the whole prompt in a chunk, once in chunks of 13. */
static void model_check(const char *model, const char *kernels, int chunk)
{
    double tolerance = tolerance_of(kernels), margin = tolerance < 0.01 ? 1e-3 : tolerance;
    char folder[REFERENCE_PATH], relative[256];
    snprintf(relative, sizeof relative, "models/%s", model);
    reference_path(folder, "KVF_GOLDEN", relative);
    struct engine *engine = open_folder(folder, kernels, "f32", 2, chunk == 13 ? 2 : 1, chunk);
    const struct engine_info *info = engine_info(engine);
    snprintf(relative, sizeof relative, "models/%s/expected.json", model);
    json_t *root = reference_json("KVF_GOLDEN", relative);
    const json_t *prompts = reference_get(root, "prompts");
    float *logits = malloc((size_t)info->vocab * sizeof *logits);
    float *hidden = malloc((size_t)(info->layers + 2) * (size_t)info->hidden * sizeof *hidden);
    ck_assert_uint_eq(json_array_size(prompts), 4);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        char what[256];
        snprintf(what, sizeof what, "%s %s %s", model, kernels, reference_text(prompt, "name"));
        int count;
        int32_t *ids = reference_ids(reference_get(prompt, "ids"), &count);
        struct kvf_err err = {""};
        ck_assert_msg(engine_logits(engine, ids, count, logits, hidden, &err) == 0, "%s", err.text);
        logits_compare(logits, reference_get(prompt, "logits_last"), tolerance, what);
        const json_t *stages = json_object_get(prompt, "hidden"), *top5 = json_object_get(prompt, "top5");
        if (stages != NULL) hidden_check(hidden, info, stages, tolerance, what);
        if (top5 != NULL) top5_check(engine, ids, top5, tolerance);
        greedy_check(engine, ids, count, reference_get(prompt, "greedy"), margin, what);
        free(ids);
    }
    struct kvf_err err = {""};
    ck_assert_msg(engine_check(engine, &err) == 0, "%s", err.text);
    free(logits);
    free(hidden);
    json_decref(root);
    engine_close(&engine);
}

START_TEST(reference_models)
{
    for (int set = 0; engine_kernel_set(set) != NULL; set++) {
        model_check(models[_i], engine_kernel_set(set), 256);
        model_check(models[_i], engine_kernel_set(set), 13);
    }
}
END_TEST

/* ---- tiny-reasoner ---- */

static void submit_line(struct engine *engine, const json_t *line, uint64_t id)
{
    int count, again;
    int32_t *ids = reference_ids(reference_get(line, "prompt_ids"), &count), *encoded = NULL;
    char *text = NULL;
    struct kvf_err err = {""};
    /* The prompt text is the chat template around the problem: encoding it as it is gives the ids. */
    int rc = engine_prompt(engine, "raw", reference_text(line, "prompt"), &encoded, &again, &text, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    ck_assert_int_eq(again, count);
    ck_assert_mem_eq(encoded, ids, (size_t)count * sizeof *ids);
    ck_assert_str_eq(text, reference_text(line, "prompt"));
    struct request request = {.id = id,
                              .prompt_ids = ids,
                              .prompt_tokens = count,
                              .budget_tokens = 1,
                              .interval_tokens = 1,
                              .max_new_tokens = 1000};
    ck_assert_int_eq(policy_parse("full", &request.policy, &err), 0);
    ck_assert_msg(engine_submit(engine, &request, &err) == 0, "%s", err.text);
    free(ids);
    free(encoded);
    free(text);
}

static void output_check(const struct completion *completion, const json_t *line)
{
    int count;
    int32_t *expected = reference_ids(reference_get(line, "output_ids"), &count);
    const char *id = reference_text(line, "id");
    ck_assert_msg(completion->finish == FINISH_STOP, "%s: %s", id, completion->error);
    ck_assert_msg(completion->output_tokens == count, "%s: %d tokens, expected %d", id, completion->output_tokens,
                  count);
    for (int i = 0; i < count; i++) {
        ck_assert_msg(completion->output_ids[i] == expected[i], "%s: token %d: %d, expected %d", id, i,
                      completion->output_ids[i], expected[i]);
    }
    /* The reference's text shows the closing token, ours leaves special tokens out. */
    const char *text = reference_text(line, "text");
    size_t len = strlen(completion->text);
    ck_assert_msg(strncmp(completion->text, text, len) == 0 && strcmp(text + len, "<|end|>") == 0, "%s: text %s", id,
                  completion->text);
    const char *closed = strstr(text, "</think>");
    ck_assert_int_eq(completion->thinking_tokens >= 0, closed != NULL);
    ck_assert_double_eq_tol((double)completion->min_margin, json_number_value(reference_get(line, "min_margin")),
                            tolerance_of("avx512bf16") * 4);
    free(expected);
}

/* The same ids with K and V rounded to bf16: the reference's margins are wider than that. */
START_TEST(tiny_reasoner)
{
    const char *kernels = engine_kernel_set(_i % 3);
    if (kernels == NULL) return;
    char folder[REFERENCE_PATH];
    reference_path(folder, "KVF_SOURCE", "models/tiny-reasoner");
    struct engine *engine = open_folder(folder, kernels, _i < 3 ? "f32" : "bf16", 16, 2, 0);
    json_t *lines = reference_lines("KVF_SOURCE", "tests/golden/tiny_expected.jsonl");
    size_t count = json_array_size(lines), done = 0;
    ck_assert_uint_eq(count, 40);
    if (_i >= 3 && strcmp(kernels, "plain") == 0) count = 8; /* slow; f32 runs all */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    count = 6; /* the other build runs all */
#endif
    for (size_t i = 0; i < count; i++) submit_line(engine, json_array_get(lines, i), i);
    struct kvf_err err = {""};
    while (engine_step(engine, &err) == 0) {
    }
    struct completion completion;
    for (; engine_poll(engine, &completion); done++) {
        output_check(&completion, json_array_get(lines, completion.id));
        completion_free(&completion);
    }
    ck_assert_uint_eq(done, count);
    ck_assert_msg(engine_check(engine, &err) == 0, "%s", err.text);
    json_decref(lines);
    engine_close(&engine);
}
END_TEST

int main(void)
{
    reference_require("KVF_GOLDEN");
    reference_require("KVF_SOURCE");
    Suite *suite = suite_create("engine models");
    TCase *tc = tcase_create("models");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, reference_models, 0, 2);
    tcase_add_loop_test(tc, tiny_reasoner, 0, 6);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
