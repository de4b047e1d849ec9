/* generate and calibrate on tiny-reasoner: figures, profile file, and what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include "worker/local.h"

static char model[512], probes[512], path[64];

static void setup(void)
{
    const char *source = getenv("KVF_SOURCE");
    snprintf(model, sizeof model, "%s/models/tiny-reasoner", source);
    snprintf(probes, sizeof probes, "%s/data/probes.jsonl", source);
    snprintf(path, sizeof path, "/tmp/kvf-profile-%d.json", (int)getpid());
}
static void teardown(void)
{
    unlink(path);
}

static struct local_prompt prompt_of(const char *policy, int budget)
{
    struct kvf_err err;
    struct local_prompt how = {.model_folder = model,
                               .threads = 1,
                               .prompt = "mod 10: p=n-9; q=h-5; n=8; h=c-5; w=3; c=w*9; e=2. Find w,h,c,q,p.",
                               .budget_tokens = budget,
                               .interval_tokens = 16,
                               .sampling = {.top_p = 1},
                               .max_new_tokens = 400};
    ck_assert_int_eq(policy_parse(policy, &how.policy, &err), 0);
    return how;
}

START_TEST(generates)
{
    struct local_prompt how = prompt_of("full", 0);
    struct local_answer answer;
    struct kvf_err err = {""};
    char *text = NULL, *figures = NULL;
    size_t len = 0;
    how.stream = open_memstream(&text, &len);
    ck_assert_msg(local_generate(&how, &answer, &err) == 0, "%s", err.text);
    fclose(how.stream);
    ck_assert_str_eq(text, answer.completion.text); /* what streams is what comes out */
    ck_assert_ptr_nonnull(strstr(text, "</think>"));
    ck_assert_ptr_nonnull(strstr(text, "\\boxed{32779}"));
    ck_assert_int_eq(answer.completion.finish, FINISH_STOP);
    ck_assert_int_eq(answer.completion.compactions, 0);
    /* full cache is what it is compared with */
    ck_assert_int_eq(answer.kv_full_mean_bytes, answer.completion.kv_live_mean_bytes);
    ck_assert_int_eq(answer.kv_full_peak_bytes, answer.completion.kv_live_peak_bytes);
    ck_assert_int_eq(answer.map.count, 0); /* it was not asked for */
    FILE *out = open_memstream(&figures, &len);
    ck_assert_int_eq(local_print_json(&answer, out, &err), 0);
    fclose(out);
    json_t *object = json_loads(figures, 0, NULL);
    ck_assert_ptr_nonnull(object);
    ck_assert_str_eq(json_string_value(json_object_get(object, "text")), text);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "output_tokens")), answer.completion.output_tokens);
    ck_assert(json_is_null(json_object_get(object, "budget_achieved"))); /* not measured, so not 0 */
    json_decref(object);
    free(figures);
    free(text);
    local_answer_free(&answer);
}
END_TEST

START_TEST(compresses)
{
    struct local_prompt how = prompt_of("snapkv", 40);
    struct local_answer answer;
    struct kvf_err err = {""};
    ck_assert_msg(local_generate(&how, &answer, &err) == 0, "%s", err.text);
    ck_assert_int_gt(answer.completion.compactions, 0);
    ck_assert_int_gt(answer.completion.evicted_entries, 0);
    ck_assert_int_lt(answer.completion.kv_live_mean_bytes, answer.kv_full_mean_bytes);
    ck_assert_int_lt(answer.completion.kv_live_peak_bytes, answer.kv_full_peak_bytes);
    local_answer_free(&answer);
}
END_TEST

/* The map says what the engine measured, and recording it changes nothing. */
START_TEST(maps)
{
    static const char *const policies[] = {"full", "snapkv", "ada-rkv", "streaming"};
    for (int i = 0; i < 4; i++) {
        struct local_prompt how = prompt_of(policies[i], 40);
        struct local_answer plain, answer;
        struct kvf_err err = {""};
        ck_assert_msg(local_generate(&how, &plain, &err) == 0, "%s", err.text);
        how.record_entries = true;
        ck_assert_msg(local_generate(&how, &answer, &err) == 0, "%s", err.text);
        const struct completion *c = &answer.completion;
        const struct kv_map *map = &answer.map;
        ck_assert_uint_eq(c->output_hash, plain.completion.output_hash);
        ck_assert(c->min_margin == plain.completion.min_margin);
        ck_assert_int_eq(kv_map_compactions(map), c->compactions);
        ck_assert_int_eq(map->tokens[0], c->prompt_tokens);
        ck_assert_int_eq(map->tokens[map->count - 1], c->prompt_tokens + c->output_tokens - 1);
        int lists = map->layers * map->kv_heads;
        int64_t evicted = 0;
        for (int p = 1; p < map->count; p++) {
            const int32_t *now = map->entries + (int64_t)p * lists, *before = now - lists;
            for (int k = 0; k < lists; k++) {
                if (map->after[p])
                    evicted += before[k] - now[k];
                else /* every head grows by one a token */
                    ck_assert_int_eq(now[k] - before[k], map->tokens[p] - map->tokens[p - 1]);
            }
        }
        ck_assert_int_eq(evicted, c->evicted_entries);
        double mean;
        int64_t peak;
        kv_map_live(map, answer.info.kv_page_entries, answer.info.kv_page_bytes, &mean, &peak);
        ck_assert_int_eq((int64_t)mean, c->kv_live_mean_bytes);
        ck_assert_int_eq(peak, c->kv_live_peak_bytes);
        if (c->compactions > 0)
            ck_assert_double_eq_tol(kv_map_figures(map, 0, lists).kept / lists, c->budget_achieved, 1e-9);
        local_answer_free(&plain);
        local_answer_free(&answer);
    }
}
END_TEST

START_TEST(calibrates)
{
    struct local_calibration how = {.model_folder = model,
                                    .threads = 1,
                                    .dataset_path = probes,
                                    .probes = 2,
                                    .how = local_calibration_defaults(),
                                    .out_path = path};
    struct wave_profile made, read;
    struct kvf_err err = {""};
    char *written = NULL, *text = NULL;
    how.how.max_new_tokens = 300;
    ck_assert_msg(local_calibrate(&how, &made, &written, &err) == 0, "%s", err.text);
    ck_assert_str_eq(written, path);
    free(written);
    ck_assert_int_eq(made.probes, 2);
    ck_assert_int_gt(made.samples, 0);
    double mean = 0;
    for (int l = 0; l < made.layers; l++) mean += made.demand[l] / made.layers;
    ck_assert_double_eq_tol(mean, 1, 1e-9);
    ck_assert_msg(local_load_profile(path, made.model_hash, 8, 3, &read, &text, &err) == 0, "%s", err.text);
    for (int l = 0; l < made.layers; l++) ck_assert_double_eq_tol(read.demand[l], made.demand[l], 1e-12);
    free(text);
    /* another model's */
    char other[65];
    memset(other, '0', 64);
    other[64] = 0;
    ck_assert_int_eq(local_load_profile(path, other, 0, 0, &read, NULL, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, other));
    ck_assert_ptr_nonnull(strstr(err.text, made.model_hash));
    ck_assert_ptr_nonnull(strstr(err.text, path));
    /* used */
    struct local_prompt prompt = prompt_of("reasonalloc", 40);
    struct local_answer answer;
    prompt.profile_path = path;
    ck_assert_msg(local_generate(&prompt, &answer, &err) == 0, "%s", err.text);
    ck_assert_int_gt(answer.completion.compactions, 0);
    local_answer_free(&answer);
    /* torn */
    ck_assert_int_eq(truncate(path, 40), 0);
    ck_assert_int_lt(local_load_profile(path, made.model_hash, 0, 0, &read, NULL, &err), 0);
}
END_TEST

START_TEST(refuses)
{
    struct local_answer answer;
    struct kvf_err err = {""};
    struct local_prompt how = prompt_of("reasonalloc", 40);
    how.profile_path = "/nowhere/wave-profile.json";
    ck_assert_int_eq(local_generate(&how, &answer, &err), KVF_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "calibrate"));
    how = prompt_of("snapkv", 8);
    ck_assert_int_eq(local_generate(&how, &answer, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "budget"));
    how = prompt_of("full", 0);
    how.model_folder = "/nowhere";
    ck_assert_int_lt(local_generate(&how, &answer, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere"));
    struct local_calibration calibration = {.model_folder = model,
                                            .threads = 1,
                                            .dataset_path = "/nowhere.jsonl",
                                            .probes = 2,
                                            .how = local_calibration_defaults()};
    struct wave_profile profile;
    ck_assert_int_eq(local_calibrate(&calibration, &profile, NULL, &err), KVF_ENOTFOUND);
    calibration.dataset_path = probes;
    calibration.out_path = "/nowhere/profile.json";
    calibration.probes = 1;
    /* before the probes are decoded: one of 1 token alone would be an error of its own */
    calibration.how.max_new_tokens = 1;
    ck_assert_int_eq(local_calibrate(&calibration, &profile, NULL, &err), KVF_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/profile.json"));
}
END_TEST

START_TEST(stops_when_told)
{
    static volatile sig_atomic_t stop = 1;
    struct local_prompt how = prompt_of("full", 0);
    struct local_answer answer;
    struct kvf_err err = {""};
    how.stop = &stop;
    ck_assert_msg(local_generate(&how, &answer, &err) == 0, "%s", err.text);
    ck_assert_int_eq(answer.completion.finish, FINISH_CANCELLED);
    local_answer_free(&answer);
}
END_TEST

int main(void)
{
    if (getenv("KVF_SOURCE") == NULL) {
        printf("skip: KVF_SOURCE is not set\n");
        return 77;
    }
    Suite *suite = suite_create("worker: local runs");
    TCase *tc = tcase_create("local");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, generates);
    tcase_add_test(tc, compresses);
    tcase_add_test(tc, maps);
    tcase_add_test(tc, calibrates);
    tcase_add_test(tc, refuses);
    tcase_add_test(tc, stops_when_told);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
