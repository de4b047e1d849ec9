/* engine_tiny.h: what the decoder's tests share: tiny-reasoner, its problems, runs of requests. Header only. */
#ifndef KVF_ENGINE_TINY_H
#define KVF_ENGINE_TINY_H

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"

/* Ends the program as skipped where KVF_SOURCE does not name the source tree. */
static inline void tiny_require(void)
{
    if (getenv("KVF_SOURCE") != NULL) return;
    printf("skip: KVF_SOURCE is not set\n");
    exit(77);
}

static inline const char *tiny_path(const char *relative)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("KVF_SOURCE"), relative);
    return path;
}

/* How tests that go over it store K and V. */
static const char *tiny_kv_type = "f32";

static inline struct engine *tiny_open(const char *kernels, int max_batch, int threads, int chunk, int64_t kv_bytes)
{
    struct engine_options options = {.model_folder = tiny_path("models/tiny-reasoner"),
                                     .kernels = kernels,
                                     .kv_type = tiny_kv_type,
                                     .threads = threads,
                                     .max_batch = max_batch,
                                     .prefill_chunk_tokens = chunk,
                                     .kv_bytes = kv_bytes};
    struct engine *engine = NULL;
    struct kvf_err err = {""};
    ck_assert_msg(engine_open(&options, &engine, &err) == 0, "%s", err.text);
    return engine;
}

/* The wave profile that an independent simulation measured. */
static inline struct wave_profile tiny_profile(const struct engine *engine)
{
    static const double demand[] = {0.789, 0.886, 0.609, 0.792, 1.642, 1.039, 1.404, 0.838};
    struct wave_profile profile = {
        .layers = 8, .kv_heads = 3, .window_tokens = 8, .rho = 0.93, .probes = 8, .samples = 24};
    memcpy(profile.demand, demand, sizeof demand);
    snprintf(profile.model_hash, sizeof profile.model_hash, "%s", engine_info(engine)->model_hash);
    return profile;
}

struct tiny_prompts {
    int32_t **ids; /* [count] */
    int *tokens;
    int count;
};

/* The first `count` problems of a data file as prompts. */
static inline struct tiny_prompts tiny_prompts(const struct engine *engine, const char *relative, int count)
{
    struct tiny_prompts prompts = {calloc((size_t)count, sizeof(int32_t *)), calloc((size_t)count, sizeof(int)), count};
    FILE *file = fopen(tiny_path(relative), "r");
    ck_assert_msg(file != NULL, "cannot open %s", tiny_path(relative));
    char *line = NULL;
    size_t cap = 0;
    for (int i = 0; i < count; i++) {
        ck_assert_int_gt(getline(&line, &cap, file), 0);
        json_t *row = json_loads(line, 0, NULL);
        struct kvf_err err = {""};
        int rc = engine_prompt(engine, "auto", json_string_value(json_object_get(row, "problem")), &prompts.ids[i],
                               &prompts.tokens[i], NULL, &err);
        ck_assert_msg(rc == 0, "%s", err.text);
        json_decref(row);
    }
    free(line);
    fclose(file);
    return prompts;
}

static inline void tiny_prompts_free(struct tiny_prompts *prompts)
{
    for (int i = 0; i < prompts->count; i++) free(prompts->ids[i]);
    free(prompts->ids);
    free(prompts->tokens);
}

static inline struct request tiny_request(const struct tiny_prompts *prompts, int index, const char *policy, int budget,
                                          const struct wave_profile *profile)
{
    struct kvf_err err = {""};
    struct request request = {.id = (uint64_t)index,
                              .prompt_ids = prompts->ids[index],
                              .prompt_tokens = prompts->tokens[index],
                              .budget_tokens = budget,
                              .interval_tokens = 32,
                              .profile = profile,
                              .sampling = {.temperature = 0.0, .top_p = 1.0},
                              .seed = 1000 + (uint64_t)index,
                              .max_new_tokens = 700};
    ck_assert_msg(policy_parse(policy, &request.policy, &err) == 0, "%s", err.text);
    return request;
}

/* Steps until nothing is left; the pool is sound afterwards. */
static inline void tiny_run(struct engine *engine)
{
    struct kvf_err err = {""};
    int rc;
    while ((rc = engine_step(engine, &err)) == 0) {
    }
    ck_assert_int_eq(rc, KVF_EAGAIN);
    ck_assert_int_eq(engine_load(engine), 0);
    ck_assert_msg(engine_check(engine, &err) == 0, "%s", err.text);
}

static inline void tiny_submit(struct engine *engine, const struct request *request)
{
    struct kvf_err err = {""};
    ck_assert_msg(engine_submit(engine, request, &err) == 0, "%s", err.text);
}

/* One request alone in the engine. The caller frees the completion. */
static inline struct completion tiny_alone(struct engine *engine, const struct request *request)
{
    struct completion completion;
    tiny_submit(engine, request);
    tiny_run(engine);
    ck_assert_int_eq(engine_poll(engine, &completion), 1);
    ck_assert_uint_eq(completion.id, request->id);
    return completion;
}

static inline void tiny_same(const struct completion *a, const struct completion *b, const char *what)
{
    ck_assert_msg(a->finish == b->finish, "%s: request %llu: %s (%s) and %s (%s)", what, (unsigned long long)a->id,
                  finish_reason_name(a->finish), a->error, finish_reason_name(b->finish), b->error);
    ck_assert_msg(a->output_tokens == b->output_tokens, "%s: request %llu: %d and %d tokens", what,
                  (unsigned long long)a->id, a->output_tokens, b->output_tokens);
    for (int i = 0; i < a->output_tokens; i++) {
        ck_assert_msg(a->output_ids[i] == b->output_ids[i], "%s: request %llu: token %d differs", what,
                      (unsigned long long)a->id, i);
    }
    ck_assert_uint_eq(a->output_hash, b->output_hash);
    ck_assert_str_eq(a->text, b->text);
    ck_assert_mem_eq(&a->min_margin, &b->min_margin, sizeof a->min_margin); /* the logits' own bits */
    ck_assert_int_eq(a->thinking_tokens, b->thinking_tokens);
}

static inline int tiny_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
