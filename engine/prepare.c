/* prepare.c: what some policies read beyond the cache, made once, when the first request that needs it is submitted. */
#include <stdlib.h>
#include "alloc/scorer.h"
#include "engine/internal.h"

/* The output projections [hidden][heads * head_dim] transposed, so that they are [heads][head_dim][hidden]. */
static int output_make(struct engine *engine, struct kvf_err *err)
{
    const struct model_config *config = &engine->model->config;
    size_t width = (size_t)config->heads * (size_t)config->head_dim, hidden = (size_t)config->hidden;
    size_t numbers = (size_t)config->layers * width * hidden;
    float *output = malloc(numbers * sizeof *output);
    if (output == NULL) {
        return kvf_fail(err, KVF_ENOMEM, "output projections of %s: no memory for %zu bytes", engine->model->name,
                        numbers * sizeof *output);
    }
    for (int l = 0; l < config->layers; l++) {
        const struct weight *weight = &engine->model->layer[l].o;
        float *out = output + (size_t)l * width * hidden;
        for (size_t c = 0; c < hidden; c++) {
            for (size_t k = 0; k < width; k++) out[k * hidden + c] = weight_at(weight, (int64_t)(c * width + k));
        }
    }
    engine->output = output;
    engine->scored.output = output;
    engine->scored.hidden = config->hidden;
    engine->output_bytes = (int64_t)(numbers * sizeof *output);
    return 0;
}

int engine_prepare(struct engine *engine, const struct policy *policy, struct kvf_err *err)
{
    int rc = kv_pool_prepare(engine->kv, policy, err);
    if (rc == 0 && engine->output == NULL && (scorer_at(policy->scorer)->needs & NEEDS_OUTPUT)) {
        rc = output_make(engine, err);
    }
    engine->scored.rope_frequency = decoder_rope_frequency(engine->decoder);
    engine->info.kv_reserved_bytes = kv_pool_reserved_bytes(engine->kv);
    engine->info.workspace_bytes =
        decoder_workspace_bytes(engine->decoder) + kv_pool_workspace_bytes(engine->kv) + engine->output_bytes;
    return rc;
}
