/* calibrate.c: the wave profile of a model (alloc.md 1.4): how many entries each layer needs to keep a share of the
 * attention of the last queries, measured over greedy traces with full cache. */
#include <stdlib.h>
#include <string.h>
#include "engine/internal.h"

struct probe {
    struct engine *engine;
    const struct calibration *how;
    float *keys;                 /* [context][head_dim] */
    float *queries;              /* [ENGINE_WINDOW_TOKENS][heads * head_dim] */
    double *attention, *scratch; /* [kv_heads * context] */
    struct demand_sum sum, pooled;
};

static int probe_new(struct probe *probe, struct kvf_err *err)
{
    const struct engine_info *info = &probe->engine->info;
    size_t context = (size_t)info->context_tokens, width = (size_t)info->heads * (size_t)info->head_dim;
    probe->keys = malloc(context * (size_t)info->head_dim * sizeof *probe->keys);
    probe->queries = malloc(ENGINE_WINDOW_TOKENS * width * sizeof *probe->queries);
    probe->attention = malloc((size_t)info->kv_heads * context * sizeof *probe->attention);
    probe->scratch = malloc((size_t)info->kv_heads * context * sizeof *probe->scratch);
    if (probe->keys == NULL || probe->queries == NULL || probe->attention == NULL || probe->scratch == NULL) {
        return kvf_fail(err, KVF_ENOMEM, "calibration of %s: no memory", info->model_name);
    }
    return 0;
}

static void probe_free(struct probe *probe)
{
    free(probe->keys);
    free(probe->queries);
    free(probe->attention);
    free(probe->scratch);
}

/* One sampled step: x[l] = mean over heads of the entries that hold a share rho of the window's attention; all[l]: how
 * many hold it when the heads of the layer are one. */
static void probe_sample(struct probe *probe, const struct kv_seq *seq)
{
    const struct engine_info *info = &probe->engine->info;
    const struct kv_pool *kv = probe->engine->kv;
    int group = info->heads / info->kv_heads, dim = info->head_dim;
    int64_t width = (int64_t)info->heads * dim;
    double x[PROFILE_MAX_LAYERS], all[PROFILE_MAX_LAYERS];
    for (int l = 0; l < info->layers; l++) {
        int window = kv_queries(kv, seq, l, probe->how->window_tokens, probe->queries);
        int held = 0;
        x[l] = 0.0;
        for (int h = 0; h < info->kv_heads; h++) {
            int entries = kv_head(kv, seq, l, h).entries;
            kv_read_head(kv, seq, l, h, probe->keys, NULL, NULL);
            double *attention = probe->attention + held;
            demand_attention(probe->keys, entries, dim, probe->queries + h * group * dim, window, width, group,
                             probe->scratch, attention);
            x[l] += demand_count(attention, entries, probe->how->rho, probe->scratch) / (double)info->kv_heads;
            held += entries;
        }
        all[l] = demand_count(probe->attention, held, probe->how->rho * info->kv_heads, probe->scratch);
    }
    demand_add(&probe->sum, x, info->layers);
    demand_add(&probe->pooled, all, info->layers);
}

static int probe_due(const struct calibration *how, int tokens)
{
    return tokens >= how->from_tokens && (tokens - how->from_tokens) % how->every_tokens == 0;
}

/* Decodes one prompt greedily to its end. */
static int probe_run(struct probe *probe, struct kv_seq *seq, const int32_t *prompt, int prompt_tokens,
                     struct kvf_err *err)
{
    struct engine *engine = probe->engine;
    const struct model_config *config = &engine->model->config;
    const struct sampling greedy = {0};
    int32_t token = 0;
    int last = prompt_tokens + probe->how->max_new_tokens;
    if (last > engine->info.context_tokens) last = engine->info.context_tokens;
    for (int seen = 0; seen < last;) {
        int prefill = seen < prompt_tokens, count = prefill ? prompt_tokens - seen : 1;
        if (count > engine->prefill_chunk_tokens) count = engine->prefill_chunk_tokens;
        if (kv_reserve(engine->kv, seq, count) != 0) {
            return kvf_fail(err, KVF_ENOMEM, "calibration: %d tokens of full cache do not fit beside what runs",
                            seen + count);
        }
        struct segment segment = {.seq = seq,
                                  .tokens = prefill ? prompt + seen : &token,
                                  .count = count,
                                  .first_position = seen,
                                  .wants_logits = seen + count >= prompt_tokens};
        decoder_forward(engine->decoder, engine->kv, &segment, 1, NULL);
        seen += count;
        if (!segment.wants_logits) continue;
        if (probe_due(probe->how, seen)) probe_sample(probe, seq);
        struct choice choice;
        int rc = sample_token(segment.logits, config->vocab, &greedy, 0, (uint64_t)seen, engine->places, &choice, err);
        if (rc != 0) return rc;
        token = choice.token;
        for (int i = 0; i < config->eos_count; i++) {
            if (config->eos_ids[i] == token) return 0;
        }
    }
    return 0;
}

static int calibration_check(const struct engine *engine, const struct calibration *how, int count, struct kvf_err *err)
{
    if (count < 1) return kvf_fail(err, KVF_EINVAL, "calibration: expected at least 1 probe, got %d", count);
    if (!(how->rho > 0.0 && how->rho <= 1.0)) {
        return kvf_fail(err, KVF_EINVAL, "calibration: rho: expected a share in (0, 1], got %g", how->rho);
    }
    if (how->window_tokens < 1 || how->window_tokens > ENGINE_WINDOW_TOKENS) {
        return kvf_fail(err, KVF_EINVAL, "calibration: window: expected 1...%d tokens, got %d", ENGINE_WINDOW_TOKENS,
                        how->window_tokens);
    }
    if (how->from_tokens < 1 || how->every_tokens < 1 || how->max_new_tokens < 1) {
        return kvf_fail(err, KVF_EINVAL, "calibration: from, every, max new tokens: expected 1 or more, got %d, %d, %d",
                        how->from_tokens, how->every_tokens, how->max_new_tokens);
    }
    if (engine->info.layers > PROFILE_MAX_LAYERS) {
        return kvf_fail(err, KVF_EUNSUPPORTED, "calibration: a profile has at most %d layers, %s has %d",
                        PROFILE_MAX_LAYERS, engine->info.model_name, engine->info.layers);
    }
    return 0;
}

int engine_calibrate(struct engine *engine, const int32_t *const *prompts, const int *prompt_tokens, int count,
                     const struct calibration *how, struct wave_profile *out, struct kvf_err *err)
{
    int rc = calibration_check(engine, how, count, err);
    for (int p = 0; rc == 0 && p < count; p++) rc = prompt_check(engine, prompts[p], prompt_tokens[p], err);
    if (rc != 0) return rc;
    struct probe probe = {.engine = engine, .how = how};
    rc = probe_new(&probe, err);
    for (int p = 0; rc == 0 && p < count; p++) {
        struct kv_seq *seq = NULL;
        rc = kv_seq_open(engine->kv, NULL, &seq, err);
        if (rc != 0) break;
        rc = probe_run(&probe, seq, prompts[p], prompt_tokens[p], err);
        kv_seq_close(engine->kv, &seq);
    }
    if (rc == 0 && probe.sum.samples == 0) {
        rc = kvf_fail(err, KVF_EINVAL, "calibration: none of %d probes reached %d tokens: nothing was measured", count,
                      how->from_tokens);
    }
    if (rc == 0) {
        memset(out, 0, sizeof *out);
        snprintf(out->model_hash, sizeof out->model_hash, "%s", engine->info.model_hash);
        out->layers = engine->info.layers;
        out->kv_heads = engine->info.kv_heads;
        out->window_tokens = how->window_tokens;
        out->rho = how->rho;
        out->probes = count;
        out->samples = probe.sum.samples;
        demand_finish(&probe.sum, out->layers, out->demand);
        demand_finish(&probe.pooled, out->layers, out->demand_pooled);
        out->has_demand_pooled = 1;
    }
    probe_free(&probe);
    return rc;
}
