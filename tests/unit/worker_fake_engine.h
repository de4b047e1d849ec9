/* worker_fake_engine.h: an engine without a model, linked in place of the real one: every prompt "N" is answered with
 * </think>\boxed{N} after 1 + seed % 5 steps. Include it in one file of a test program. */
#ifndef KVF_WORKER_FAKE_ENGINE_H
#define KVF_WORKER_FAKE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"

#define FAKE_MAX 4096

/* Levers and counters, for the test's thread. */
static atomic_int fake_fail_step;    /* the next step fails */
static atomic_int fake_never_finish; /* requests run on */
static atomic_int fake_opened, fake_submitted, fake_cancelled, fake_batch_max;

struct fake_request {
    uint64_t id;
    int steps_left, cancelled, done;
    char text[64];
};
struct engine {
    struct engine_info info;
    struct fake_request *list[FAKE_MAX];
    int n;
    int64_t emitted;
};

int engine_open(const struct engine_options *options, struct engine **out, struct kvf_err *err)
{
    if (strstr(options->model_folder, "broken") != NULL)
        return kvf_fail(err, KVF_ECORRUPT, "%s: weights are torn", options->model_folder);
    struct engine *engine = calloc(1, sizeof *engine);
    engine->info.max_batch = options->max_batch;
    engine->info.threads = options->threads;
    engine->info.weights_bytes = 1000;
    engine->info.kv_reserved_bytes = 2000;
    engine->info.workspace_bytes = 3000;
    snprintf(engine->info.kernel_set, sizeof engine->info.kernel_set, "fake");
    snprintf(engine->info.model_hash, sizeof engine->info.model_hash, "hash-of-%.40s", options->model_folder);
    fake_opened++;
    *out = engine;
    return 0;
}
void engine_close(struct engine **engine)
{
    if (*engine == NULL) return;
    for (int k = 0; k < (*engine)->n; k++) free((*engine)->list[k]);
    free(*engine);
    *engine = NULL;
}
const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}
int engine_model_hash(const char *folder, char *hex, struct kvf_err *err)
{
    (void)err;
    snprintf(hex, 65, "hash-of-%.40s", folder);
    return 0;
}
int engine_prompt(const struct engine *engine, const char *template_name, const char *user, int32_t **ids, int *count,
                  char **text, struct kvf_err *err)
{
    (void)engine;
    (void)template_name;
    (void)text;
    if (strcmp(user, "long") == 0) return kvf_fail(err, KVF_EINVAL, "prompt: expected at most 8 tokens, got 9");
    *count = (int)strlen(user);
    *ids = malloc(((size_t)*count + 1) * sizeof **ids);
    for (int k = 0; k < *count; k++) (*ids)[k] = user[k];
    return 0;
}
const char *finish_reason_name(enum finish_reason reason)
{
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return names[reason];
}
int engine_submit(struct engine *engine, const struct request *request, struct kvf_err *err)
{
    if (engine->n == FAKE_MAX) return kvf_fail(err, KVF_EAGAIN, "full");
    struct fake_request *fake = calloc(1, sizeof *fake);
    fake->id = request->id;
    fake->steps_left = 1 + (int)(request->seed % 5);
    for (int k = 0; k < request->prompt_tokens && k < 63; k++) fake->text[k] = (char)request->prompt_ids[k];
    engine->list[engine->n++] = fake;
    fake_submitted++;
    return 0;
}
int engine_cancel(struct engine *engine, uint64_t id)
{
    for (int k = 0; k < engine->n; k++)
        if (engine->list[k]->id == id) {
            engine->list[k]->cancelled = 1;
            fake_cancelled++;
            return 0;
        }
    return KVF_ENOTFOUND;
}
int engine_load(const struct engine *engine)
{
    int load = 0;
    for (int k = 0; k < engine->n; k++) load += !engine->list[k]->done;
    return load;
}
int engine_step(struct engine *engine, struct kvf_err *err)
{
    if (atomic_exchange(&fake_fail_step, 0)) return kvf_fail(err, KVF_ECORRUPT, "a page is shared");
    int running = 0;
    for (int k = 0; k < engine->n && running < engine->info.max_batch; k++) {
        struct fake_request *fake = engine->list[k];
        if (fake->done) continue;
        running++;
        engine->emitted++;
        if (fake->cancelled || (!fake_never_finish && --fake->steps_left <= 0)) fake->done = 1;
    }
    if (running > fake_batch_max) fake_batch_max = running;
    return running == 0 ? KVF_EAGAIN : 0;
}
int engine_poll(struct engine *engine, struct completion *out)
{
    for (int k = 0; k < engine->n; k++) {
        struct fake_request *fake = engine->list[k];
        if (!fake->done) continue;
        memset(out, 0, sizeof *out);
        out->id = fake->id;
        out->finish = fake->cancelled ? FINISH_CANCELLED : FINISH_STOP;
        out->prompt_tokens = (int)strlen(fake->text);
        out->output_tokens = 3;
        out->thinking_tokens = -1;
        out->budget_achieved = -1;
        out->compaction_us = 0;
        out->min_margin = 1.5f;
        out->text = malloc(128);
        snprintf(out->text, 128, "</think>\\boxed{%s}", fake->text);
        free(fake);
        engine->list[k] = engine->list[--engine->n];
        return 1;
    }
    return 0;
}
void completion_free(struct completion *completion)
{
    free(completion->output_ids);
    free(completion->text);
    memset(completion, 0, sizeof *completion);
}
struct engine_counters engine_counters(const struct engine *engine)
{
    return (struct engine_counters){.emitted_tokens = engine->emitted};
}

#endif
