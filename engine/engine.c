/* engine.c: opening and closing, requests in and completions out. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "alloc/plan.h"
#include "engine/clock.h"
#include "engine/internal.h"
#include "engine/model/filemap.h"

#define LARGEST_BUDGET (1 << 20) /* that a message carries */

#define PREFILL_CHUNK_TOKENS 256
#define KV_DEFAULT_BYTES     ((int64_t)1 << 30)

/* ---- opening ---- */

const char *engine_kernel_set(int index)
{
    const struct cpu_ops *ops = cpu_ops_at(index);
    return ops == NULL ? NULL : ops->name;
}

int engine_model_hash(const char *folder, char *hex, struct kvf_err *err)
{
    return model_hash_folder(folder, hex, err);
}

const char *engine_mapped_path(const void *address)
{
    return filemap_path_at(address);
}

static int options_check(const struct engine_options *options, struct kvf_err *err)
{
    if (options->model_folder == NULL || options->model_folder[0] == '\0') {
        return kvf_fail(err, KVF_EINVAL, "model folder: expected a path, got none");
    }
    if (options->max_batch < 1 || options->max_batch > 256) {
        return kvf_fail(err, KVF_EINVAL, "batch: expected 1...256 sequences, got %d", options->max_batch);
    }
    if (options->prefill_chunk_tokens < 0 || options->prefill_chunk_tokens > 65536) {
        return kvf_fail(err, KVF_EINVAL, "prefill chunk: expected 1...65536 tokens (0: %d), got %d",
                        PREFILL_CHUNK_TOKENS, options->prefill_chunk_tokens);
    }
    if (options->kv_bytes < 0) {
        return kvf_fail(err, KVF_EINVAL, "kv bytes: expected 0 or more, got %lld", (long long)options->kv_bytes);
    }
    return 0;
}

static int kernels_choose(const struct engine_options *options, const struct cpu_ops **out, struct kvf_err *err)
{
    const char *name = options->kernels == NULL ? "auto" : options->kernels;
    *out = cpu_ops_find(name);
    if (*out != NULL) return 0;
    char sets[128] = "auto";
    for (int i = 0; cpu_ops_at(i) != NULL; i++) {
        size_t used = strlen(sets);
        snprintf(sets + used, sizeof sets - used, ", %s", cpu_ops_at(i)->name);
    }
    return kvf_fail(err, KVF_EINVAL, "kernels: expected one that this machine runs (%s), got '%s'", sets, name);
}

static int64_t kv_number_bytes(const struct engine *engine)
{
    return engine->kv_half ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
}

static int kv_type_choose(const struct engine_options *options, int *half, struct kvf_err *err)
{
    const char *name = options->kv_type == NULL ? "f32" : options->kv_type;
    *half = strcmp(name, "bf16") == 0;
    if (*half || strcmp(name, "f32") == 0) return 0;
    return kvf_fail(err, KVF_EINVAL, "kv type: expected f32 or bf16, got '%s'", name);
}

static int cache_open(struct engine *engine, const struct engine_options *options, struct kvf_err *err)
{
    const struct model_config *config = &engine->model->config;
    struct kv_shape shape = {
        .layers = config->layers,
        .kv_heads = config->kv_heads,
        .group = config->heads / config->kv_heads,
        .head_dim = config->head_dim,
        .window_tokens = ENGINE_WINDOW_TOKENS,
        .max_entries = config->max_positions,
        .max_sequences = engine->max_batch + 1, /* one for engine_logits and engine_calibrate */
        .half = engine->kv_half,
        .threads = options->threads,
    };
    int64_t bytes = options->kv_bytes;
    if (bytes == 0) {
        int64_t page = KV_PAGE_ENTRIES * (2 * (int64_t)config->head_dim * kv_number_bytes(engine) + 4);
        int64_t pages = (config->max_positions + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES;
        bytes = pages * (page + 64) * config->layers * config->kv_heads * shape.max_sequences;
        if (bytes > KV_DEFAULT_BYTES) bytes = KV_DEFAULT_BYTES;
    }
    int rc = kv_pool_new(&shape, bytes, &engine->kv, err);
    if (rc == 0) engine->total_pages = kv_pool_free_pages(engine->kv);
    return rc;
}

static void info_fill(struct engine *engine)
{
    const struct model_config *config = &engine->model->config;
    struct engine_info *info = &engine->info;
    snprintf(info->model_name, sizeof info->model_name, "%s", engine->model->name);
    snprintf(info->model_hash, sizeof info->model_hash, "%s", engine->model->hash);
    snprintf(info->architecture, sizeof info->architecture, "%s", config->architecture);
    snprintf(info->kernel_set, sizeof info->kernel_set, "%s%s", engine->ops->name, engine->kv_half ? "+kv-bf16" : "");
    info->layers = config->layers;
    info->heads = config->heads;
    info->kv_heads = config->kv_heads;
    info->head_dim = config->head_dim;
    info->hidden = config->hidden;
    info->vocab = config->vocab;
    info->context_tokens = config->max_positions;
    info->parameters = engine->model->parameters;
    info->weights_bytes = decoder_weights_bytes(engine->decoder);
    info->kv_reserved_bytes = kv_pool_reserved_bytes(engine->kv);
    info->workspace_bytes = decoder_workspace_bytes(engine->decoder) + kv_pool_workspace_bytes(engine->kv);
    info->kv_bytes_per_token =
        2 * (int64_t)config->layers * config->kv_heads * config->head_dim * kv_number_bytes(engine);
    info->kv_page_entries = KV_PAGE_ENTRIES;
    info->kv_page_bytes = kv_pool_page_bytes(engine->kv);
    info->max_batch = engine->max_batch;
    info->chat_family = chat_family(engine->tokenizer);
}

static int lists_new(struct engine *engine, struct kvf_err *err)
{
    size_t batch = (size_t)engine->max_batch;
    engine->running = calloc(batch, sizeof *engine->running);
    engine->segments = calloc(batch, sizeof *engine->segments);
    engine->chosen = calloc(batch, sizeof *engine->chosen);
    engine->due = calloc(batch, sizeof *engine->due);
    engine->due_run = calloc(batch, sizeof *engine->due_run);
    engine->places = calloc((size_t)engine->model->config.vocab, sizeof *engine->places);
    engine->entries =
        calloc((size_t)engine->model->config.layers * (size_t)engine->model->config.kv_heads, sizeof *engine->entries);
    engine->held_entries = calloc(batch, sizeof *engine->held_entries);
    engine->step_us = calloc(batch, sizeof *engine->step_us);
    if (engine->running == NULL || engine->segments == NULL || engine->chosen == NULL || engine->due == NULL ||
        engine->due_run == NULL || engine->places == NULL || engine->entries == NULL || engine->held_entries == NULL ||
        engine->step_us == NULL) {
        return kvf_fail(err, KVF_ENOMEM, "opening %s: no memory", engine->model->name);
    }
    return 0;
}

int engine_open(const struct engine_options *options, struct engine **out, struct kvf_err *err)
{
    *out = NULL;
    const struct cpu_ops *ops = NULL;
    int rc = options_check(options, err);
    int half = 0;
    if (rc == 0) rc = kernels_choose(options, &ops, err);
    if (rc == 0) rc = kv_type_choose(options, &half, err);
    if (rc != 0) return rc;
    struct engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return kvf_fail(err, KVF_ENOMEM, "opening %s: no memory", options->model_folder);
    engine->ops = ops;
    engine->kv_half = half;
    engine->max_batch = options->max_batch;
    engine->prefill_chunk_tokens =
        options->prefill_chunk_tokens == 0 ? PREFILL_CHUNK_TOKENS : options->prefill_chunk_tokens;
    engine->finished_end = &engine->finished;
    engine->info.threads = options->threads;

    rc = model_open(options->model_folder, &engine->model, err);
    if (rc == 0) rc = tokenizer_open(options->model_folder, engine->model->config.vocab, &engine->tokenizer, err);
    int rows = engine->prefill_chunk_tokens > engine->max_batch ? engine->prefill_chunk_tokens : engine->max_batch;
    if (rc == 0) {
        rc = decoder_new(engine->model, ops, options->threads, rows, engine->max_batch, &engine->decoder, err);
    }
    if (rc == 0) rc = cache_open(engine, options, err);
    if (rc == 0) rc = lists_new(engine, err);
    if (rc != 0) {
        engine_close(&engine);
        return rc;
    }
    engine->think_open_id = tokenizer_token_id(engine->tokenizer, "<think>");
    engine->think_close_id = tokenizer_token_id(engine->tokenizer, "</think>");
    info_fill(engine);
    *out = engine;
    return 0;
}

void engine_close(struct engine **engine)
{
    struct engine *e = *engine;
    if (e == NULL) return;
    for (int i = 0; i < e->running_count; i++) {
        kv_seq_close(e->kv, &e->running[i]->seq);
        run_free(e->running[i]);
    }
    struct run *lists[] = {e->queue, e->finished};
    for (int i = 0; i < 2; i++) {
        for (struct run *run = lists[i], *next; run != NULL; run = next) {
            next = run->next;
            run_free(run);
        }
    }
    free(e->running);
    free(e->segments);
    free(e->chosen);
    free(e->due);
    free(e->due_run);
    free(e->places);
    free(e->output);
    free(e->entries);
    free(e->held_entries);
    free(e->step_us);
    kv_pool_destroy(&e->kv);
    decoder_destroy(&e->decoder);
    tokenizer_close(&e->tokenizer);
    model_close(&e->model);
    free(e);
    *engine = NULL;
}

const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}

/* ---- requests ---- */

const char *finish_reason_name(enum finish_reason reason)
{
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "unknown";
}

static struct run *run_find(const struct engine *engine, uint64_t id)
{
    for (int i = 0; i < engine->running_count; i++) {
        if (engine->running[i]->request.id == id) return engine->running[i];
    }
    for (struct run *run = engine->queue; run != NULL; run = run->next) {
        if (run->request.id == id) return run;
    }
    return NULL;
}

int prompt_check(const struct engine *engine, const int32_t *ids, int count, struct kvf_err *err)
{
    if (ids == NULL || count < 1) return kvf_fail(err, KVF_EINVAL, "prompt: expected at least 1 token, got %d", count);
    if (count >= engine->info.context_tokens) {
        return kvf_fail(err, KVF_EINVAL, "prompt: %d tokens and 1 of output do not fit in the context of %d tokens",
                        count, engine->info.context_tokens);
    }
    for (int i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= engine->info.vocab) {
            return kvf_fail(err, KVF_EINVAL, "prompt: token %d: expected an id in 0...%d, got %d", i,
                            engine->info.vocab - 1, ids[i]);
        }
    }
    return 0;
}

static int request_check(const struct engine *engine, const struct request *request, struct kvf_err *err)
{
    int rc = prompt_check(engine, request->prompt_ids, request->prompt_tokens, err);
    if (rc != 0) return rc;
    if (request->max_new_tokens < 1) {
        return kvf_fail(err, KVF_EINVAL, "max new tokens: expected 1 or more, got %d", request->max_new_tokens);
    }
    rc = sampling_check(&request->sampling, err);
    if (rc == 0) rc = policy_check_budget(&request->policy, request->budget_tokens, request->interval_tokens, err);
    if (rc != 0) return rc;
    if (request->policy.scorer != SCORER_NONE && request->policy.window_tokens > ENGINE_WINDOW_TOKENS) {
        return kvf_fail(err, KVF_EINVAL, "policy %s: window: the engine remembers %d queries, got %d",
                        request->policy.name, ENGINE_WINDOW_TOKENS, request->policy.window_tokens);
    }
    if (policy_needs_profile(&request->policy)) {
        if (request->profile == NULL) {
            return kvf_fail(err, KVF_EINVAL, "policy %s: expected a wave profile of model %s, got none",
                            request->policy.name, engine->info.model_name);
        }
        rc = profile_check(request->profile, engine->info.model_hash, engine->info.layers, engine->info.kv_heads, err);
        if (rc != 0) return rc;
    }
    if (run_find(engine, request->id) != NULL) {
        return kvf_fail(err, KVF_EINVAL, "request %llu: an unfinished request has this id",
                        (unsigned long long)request->id);
    }
    return 0;
}

/* Entries that the plan leaves a head of the smallest layer; -1 where there is no plan for that budget. */
static int64_t smallest_share(const struct engine *engine, const struct request *request, int budget_tokens)
{
    int64_t layer_budget[PROFILE_MAX_LAYERS], least = INT64_MAX;
    if (layer_plan_build(&request->policy, request->profile, engine->info.layers, engine->info.kv_heads, budget_tokens,
                         layer_budget, NULL) != 0)
        return -1;
    for (int l = 0; l < engine->info.layers; l++)
        if (layer_budget[l] < least) least = layer_budget[l];
    return least / engine->info.kv_heads;
}

/* The smallest budget above `low` that leaves every head `needed` entries; 0: none that a request may have. */
static int fitting_budget(const struct engine *engine, const struct request *request, int64_t needed, int low)
{
    int high = 2 * low;
    while (high <= LARGEST_BUDGET && smallest_share(engine, request, high) < needed) low = high, high *= 2;
    if (high > LARGEST_BUDGET) return 0;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (smallest_share(engine, request, middle) < needed)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* A protected prompt that leaves the first compaction no choice fails here, not some tokens later. Layers of an online
 * plan are only known then: of those it is the mean that must fit. */
static int protected_check(const struct engine *engine, const struct request *request, struct kvf_err *err)
{
    const struct policy *policy = &request->policy;
    const struct kv_schedule schedule = {request->prompt_tokens, request->budget_tokens, request->interval_tokens};
    if (policy->scorer == SCORER_NONE || !policy->protect_prompt) return 0;
    const int64_t needed = (int64_t)request->prompt_tokens + policy->window_tokens + 1;
    const int64_t share = smallest_share(engine, request, request->budget_tokens);
    if (share < 0 || share >= needed) return 0;
    /* The last token drawn is never in the cache, and nothing is compacted once it is drawn. */
    const int room = engine->info.context_tokens - request->prompt_tokens;
    const int tokens = request->max_new_tokens < room ? request->max_new_tokens : room;
    if (kv_first_compaction(policy, &schedule) > request->prompt_tokens + (tokens > 2 ? tokens - 2 : 0)) return 0;
    const int fits = fitting_budget(engine, request, needed, request->budget_tokens);
    char hint[64] = "no budget is enough";
    if (fits > 0)
        snprintf(hint, sizeof hint, "budget %d %s", fits,
                 policy_plan_is_online(policy) ? "is the least that can be enough" : "is enough");
    return kvf_fail(
        err, KVF_EINVAL,
        "policy %s: the prompt of %d tokens does not fit: budget %d leaves a head %lld entries, expected at "
        "least %lld: the prompt + window %d + 1; %s",
        policy->name, request->prompt_tokens, request->budget_tokens, (long long)share, (long long)needed,
        policy->window_tokens, hint);
}

int engine_submit(struct engine *engine, const struct request *request, struct kvf_err *err)
{
    int rc = request_check(engine, request, err);
    if (rc == 0) rc = protected_check(engine, request, err);
    if (rc == 0) rc = engine_prepare(engine, &request->policy, err);
    if (rc != 0) return rc;
    int room = engine->info.context_tokens - request->prompt_tokens;
    int carried = policy_memory_doubles(&request->policy, engine->info.layers, engine->info.kv_heads);
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) return kvf_fail(err, KVF_ENOMEM, "request: no memory");
    run->request = *request;
    run->request.profile = NULL;
    if (run->request.max_new_tokens > room) run->request.max_new_tokens = room;
    run->prompt = malloc((size_t)request->prompt_tokens * sizeof *run->prompt);
    run->output = malloc((size_t)run->request.max_new_tokens * sizeof *run->output);
    run->layer_budget = calloc((size_t)engine->info.layers, sizeof *run->layer_budget);
    if (carried > 0) run->memory = calloc((size_t)carried, sizeof *run->memory);
    if (run->prompt == NULL || run->output == NULL || run->layer_budget == NULL ||
        (carried > 0 && run->memory == NULL)) {
        run_free(run);
        return kvf_fail(err, KVF_ENOMEM, "request of %d + %d tokens: no memory", request->prompt_tokens,
                        request->max_new_tokens);
    }
    memcpy(run->prompt, request->prompt_ids, (size_t)request->prompt_tokens * sizeof *run->prompt);
    run->request.prompt_ids = run->prompt;
    if (request->policy.scorer != SCORER_NONE) {
        rc = layer_plan_build(&request->policy, request->profile, engine->info.layers, engine->info.kv_heads,
                              request->budget_tokens, run->layer_budget, err);
    }
    if (rc != 0) {
        run_free(run);
        return rc;
    }
    run->thinking_tokens = run->ending = -1;
    run->figures.min_margin = INFINITY;
    run->submitted_us = clock_us();
    run->order = engine->next_order++;
    queue_insert(engine, run);
    return 0;
}

int engine_cancel(struct engine *engine, uint64_t id)
{
    struct run *run = run_find(engine, id);
    if (run == NULL) return KVF_ENOTFOUND;
    if (engine->in_step)
        run->cancelled = 1; /* the step's own lists hold it */
    else
        run_finish(engine, run, FINISH_CANCELLED);
    return 0;
}

int engine_load(const struct engine *engine)
{
    int load = engine->running_count;
    for (const struct run *run = engine->queue; run != NULL; run = run->next) load++;
    return load;
}

int engine_step(struct engine *engine, struct kvf_err *err)
{
    return batch_step(engine, err);
}

int engine_poll(struct engine *engine, struct completion *out)
{
    struct run *run = engine->finished;
    if (run == NULL) return 0;
    engine->finished = run->next;
    if (engine->finished == NULL) engine->finished_end = &engine->finished;
    run->figures.text = run_text(engine, run);
    *out = run->figures;
    memset(&run->figures, 0, sizeof run->figures);
    run_free(run);
    return 1;
}

void completion_free(struct completion *completion)
{
    free(completion->output_ids);
    free(completion->text);
    completion->output_ids = NULL;
    completion->text = NULL;
}

/* ---- measuring ---- */

int engine_logits(struct engine *engine, const int32_t *ids, int count, float *logits, float *hidden,
                  struct kvf_err *err)
{
    int rc = prompt_check(engine, ids, count, err);
    if (rc != 0) return rc;
    struct kv_seq *seq = NULL;
    rc = kv_seq_open(engine->kv, NULL, &seq, err);
    if (rc != 0) return rc;
    for (int done = 0; rc == 0 && done < count;) {
        int chunk = count - done < engine->prefill_chunk_tokens ? count - done : engine->prefill_chunk_tokens;
        if (kv_reserve(engine->kv, seq, chunk) != 0) {
            rc = kvf_fail(err, KVF_ENOMEM, "kv cache: %d tokens do not fit beside what runs", count);
            break;
        }
        int last = done + chunk == count;
        struct segment segment = {
            .seq = seq, .tokens = ids + done, .count = chunk, .first_position = done, .wants_logits = last};
        decoder_forward(engine->decoder, engine->kv, &segment, 1, last ? hidden : NULL);
        if (last) memcpy(logits, segment.logits, (size_t)engine->info.vocab * sizeof *logits);
        done += chunk;
    }
    kv_seq_close(engine->kv, &seq);
    return rc;
}

int engine_check(const struct engine *engine, struct kvf_err *err)
{
    return kv_check(engine->kv, err);
}

struct engine_counters engine_counters(const struct engine *engine)
{
    return engine->counters;
}
