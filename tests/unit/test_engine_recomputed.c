/* What stays in the cache of a running sequence is what a plain model says: contiguous arrays of every key, value and
 * query that the engine made, attention mass summed in double precision, compacted by alloc/ alone with projections and
 * frequencies worked out anew. A few hundred tokens of tiny-reasoner. */
#include <math.h>
#include "alloc/plan.h"
#include "engine/internal.h"
#include "tests/unit/engine_tiny.h"

#define LAYERS   8
#define HEADS    3
#define DIM      32
#define CONTEXT  512
#define BUDGET   48
#define INTERVAL 16
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TOKENS 90 /* slow there; three compactions or more of each policy but the last */
#else
#define TOKENS 300
#endif

static const char *const policies[] = {
    "h2o",
    "tova",
    "lava",
    "vatp",
    "critical-kv",
    "expected-attention",
    "h2o:recent-share=0.1,sinks=2",
    "vatp+wave+reasonalloc:smooth=0.5",
    "critical-kv+ada:window=20",
    "expected-attention+pyramid:future=64",
    "lava+dynamic",
    "dynamic:ema=0.6,smooth=0.3",
    "cake:ema=0.5",
    "snapkv:protect-prompt=1",
};
#define POLICIES ((int)(sizeof policies / sizeof *policies))

/* One (layer, kv head). */
struct list {
    int entries;
    int32_t position[CONTEXT];
    float key[CONTEXT][DIM], value[CONTEXT][DIM];
    double mass[CONTEXT];
};

static struct list lists[LAYERS][HEADS];
static struct engine *engine;
static struct policy policy;
static struct compact_work *work;
static float *output; /* [layers][heads][head_dim][hidden] */
static float frequency[DIM / 2];
static double *memory;
static int64_t offline[LAYERS];
static int group, width, seen, compacted, prompt_tokens;

static void model_read(void)
{
    const struct model_config *config = &engine->model->config;
    group = config->heads / config->kv_heads;
    width = config->heads * config->head_dim;
    ck_assert(config->layers == LAYERS && config->kv_heads == HEADS && config->head_dim == DIM);
    size_t count = (size_t)LAYERS * (size_t)width * (size_t)config->hidden;
    output = malloc(count * sizeof *output);
    for (size_t i = 0; i < count; i++) {
        size_t c = i % (size_t)config->hidden, k = i / (size_t)config->hidden % (size_t)width;
        size_t l = i / (size_t)config->hidden / (size_t)width;
        output[i] = weight_at(&engine->model->layer[l].o, (int64_t)(c * (size_t)width + k));
    }
    for (int i = 0; i < DIM / 2; i++) frequency[i] = (float)pow(config->rope_theta, -2.0 * i / DIM);
}

/* One position of one layer: its entry, and what its queries pay to all that is there. */
static void row_add(struct list *list, int position, const float *key, const float *value, const float *query)
{
    static double p[CONTEXT];
    int n = ++list->entries;
    ck_assert_int_le(n, CONTEXT);
    list->position[n - 1] = position;
    memcpy(list->key[n - 1], key, sizeof list->key[0]);
    memcpy(list->value[n - 1], value, sizeof list->value[0]);
    list->mass[n - 1] = 0;
    for (int g = 0; g < group; g++) {
        double highest = -INFINITY, total = 0;
        for (int e = 0; e < n; e++) {
            p[e] = 0;
            for (int k = 0; k < DIM; k++) p[e] += (double)query[g * DIM + k] * (double)list->key[e][k];
            p[e] /= sqrt(DIM);
            if (p[e] > highest) highest = p[e];
        }
        for (int e = 0; e < n; e++) total += p[e] = exp(p[e] - highest);
        for (int e = 0; e < n; e++) list->mass[e] += p[e] / total / group;
    }
}

/* Takes over the positions that the last step brought. */
static void rows_take(const struct kv_seq *seq)
{
    static float keys[CONTEXT][DIM], values[CONTEXT][DIM];
    float *queries = malloc((size_t)ENGINE_WINDOW_TOKENS * (size_t)width * sizeof *queries);
    int fresh = kv_tokens_seen(seq) - seen;
    ck_assert_int_le(fresh, ENGINE_WINDOW_TOKENS);
    for (int l = 0; l < LAYERS; l++) {
        int rows = kv_queries(engine->kv, seq, l, ENGINE_WINDOW_TOKENS, queries);
        for (int h = 0; h < HEADS; h++) {
            int held = kv_head(engine->kv, seq, l, h).entries;
            kv_read_head(engine->kv, seq, l, h, keys[0], values[0], NULL);
            for (int i = 0; i < fresh; i++) {
                row_add(&lists[l][h], seen + i, keys[held - fresh + i], values[held - fresh + i],
                        queries + (int64_t)(rows - fresh + i) * width + h * group * DIM);
            }
        }
    }
    seen += fresh;
    free(queries);
}

static void plain_compact(const struct kv_seq *seq)
{
    static float mass[LAYERS][HEADS][CONTEXT];
    const float *keys[LAYERS][HEADS], *values[LAYERS][HEADS], *masses[LAYERS][HEADS];
    const int32_t *positions[LAYERS][HEADS], *kept[HEADS];
    int entries[LAYERS][HEADS], keep_count[HEADS], noop;
    struct compact_input in[LAYERS];
    float *queries = malloc((size_t)LAYERS * ENGINE_WINDOW_TOKENS * (size_t)width * sizeof *queries);
    double statistic[LAYERS];
    int64_t held[LAYERS], budget[LAYERS];
    struct kvf_err err = {""};
    for (int l = 0; l < LAYERS; l++) {
        held[l] = 0;
        for (int h = 0; h < HEADS; h++) {
            struct list *list = &lists[l][h];
            keys[l][h] = list->key[0];
            values[l][h] = list->value[0];
            positions[l][h] = list->position;
            masses[l][h] = mass[l][h];
            held[l] += entries[l][h] = list->entries;
            for (int e = 0; e < list->entries; e++) mass[l][h][e] = (float)list->mass[e];
        }
        float *own = queries + (int64_t)l * ENGINE_WINDOW_TOKENS * width;
        in[l] = (struct compact_input){
            .kv_heads = HEADS,
            .group = group,
            .head_dim = DIM,
            .keys = keys[l],
            .values = values[l],
            .mass = masses[l],
            .positions = positions[l],
            .entries = entries[l],
            .queries = own,
            .query_rows = kv_queries(engine->kv, seq, l, ENGINE_WINDOW_TOKENS, own),
            .query_position = seen - 1,
            .rope_frequency = frequency,
            .output = output + (int64_t)l * width * engine->info.hidden,
            .hidden = engine->info.hidden,
            .protected_positions = policy.protect_prompt ? prompt_tokens : 0,
            .demand = policy_memory_layer(memory, LAYERS, HEADS, l),
        };
        if (!policy_plan_is_online(&policy)) continue;
        ck_assert_int_eq(plan_measure(&policy, &in[l], &engine->ops->compact, work, &statistic[l], &err), 0);
    }
    memcpy(budget, offline, sizeof budget);
    if (policy_plan_is_online(&policy)) {
        int rc =
            plan_refresh(&policy, statistic, held, policy_memory_plan(memory), LAYERS, HEADS, BUDGET, budget, &err);
        ck_assert_msg(rc == 0, "%s", err.text);
    }
    for (int l = 0; l < LAYERS; l++) {
        in[l].layer_budget = budget[l];
        int rc = compact_layer(&policy, &in[l], &engine->ops->compact, work, kept, keep_count, &noop, &err);
        ck_assert_msg(rc == 0, "%s", err.text);
        for (int h = 0; h < HEADS && !noop; h++) {
            struct list *list = &lists[l][h];
            for (int e = 0; e < keep_count[h]; e++) {
                int from = kept[h][e];
                list->position[e] = list->position[from];
                memcpy(list->key[e], list->key[from], sizeof list->key[0]);
                memcpy(list->value[e], list->value[from], sizeof list->value[0]);
                list->mass[e] = list->mass[from];
            }
            list->entries = keep_count[h];
        }
    }
    free(queries);
}

static void lists_compare(const struct kv_seq *seq)
{
    static int32_t positions[CONTEXT];
    static float keys[CONTEXT][DIM], values[CONTEXT][DIM];
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < HEADS; h++) {
            const struct list *list = &lists[l][h];
            struct kv_view view = kv_head(engine->kv, seq, l, h);
            if (view.entries != list->entries)
                ck_abort_msg("%s: %d tokens, layer %d head %d: expected %d entries, got %d", policy.name, seen, l, h,
                             list->entries, view.entries);
            kv_read_head(engine->kv, seq, l, h, keys[0], values[0], positions);
            size_t bytes = (size_t)list->entries * sizeof keys[0];
            if (memcmp(positions, list->position, (size_t)list->entries * sizeof *positions) != 0 ||
                memcmp(keys, list->key, bytes) != 0 || memcmp(values, list->value, bytes) != 0)
                ck_abort_msg("%s: %d tokens, layer %d head %d: other entries", policy.name, seen, l, h);
            ck_assert_int_eq(view.mass != NULL, strncmp(policy.name, "h2o", 3) == 0);
            for (int e = 0; view.mass != NULL && e < list->entries; e++) {
                if (!(fabs((double)view.mass[e] - list->mass[e]) <= 1e-5 * (1 + list->mass[e])))
                    ck_abort_msg("%s: %d tokens, layer %d head %d entry %d: mass %g, expected %g", policy.name, seen, l,
                                 h, e, (double)view.mass[e], list->mass[e]);
            }
        }
    }
}

START_TEST(cache_is_that_of_the_plain_model)
{
    struct kvf_err err = {""};
    engine = tiny_open("auto", 2, 2, 16, 0);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith-narrow.jsonl", 1);
    struct request request = tiny_request(&prompts, 0, policies[_i], BUDGET, &profile);
    model_read();
    policy = request.policy;
    prompt_tokens = request.prompt_tokens;
    request.interval_tokens = INTERVAL;
    request.max_new_tokens = TOKENS;
    request.ignore_stop = 1;
    if (policy.protect_prompt) request.budget_tokens += prompt_tokens;
    ck_assert_int_eq(layer_plan_build(&policy, &profile, LAYERS, HEADS, request.budget_tokens, offline, &err), 0);
    work = compact_work_new(HEADS, group, DIM, ENGINE_WINDOW_TOKENS, CONTEXT);
    int carried = policy_memory_doubles(&policy, LAYERS, HEADS);
    memory = carried > 0 ? calloc((size_t)carried, sizeof *memory) : NULL;
    tiny_submit(engine, &request);
    for (;;) {
        ck_assert_int_eq(engine_step(engine, &err), 0);
        if (engine->running_count == 0) break;
        const struct run *run = engine->running[0];
        rows_take(run->seq);
        if (run->figures.compactions > compacted) {
            ck_assert_int_eq(run->figures.compactions, ++compacted);
            plain_compact(run->seq);
        }
        lists_compare(run->seq);
    }
    struct completion completion;
    ck_assert_int_eq(engine_poll(engine, &completion), 1);
    ck_assert_msg(completion.finish == FINISH_LENGTH, "%s", completion.error);
    /* The last two tokens come too late: one is never in the cache, with the other the run ends. */
    int within = request.budget_tokens > prompt_tokens ? request.budget_tokens - prompt_tokens : 0;
    ck_assert_int_eq(compacted, (TOKENS - 2 - within) / INTERVAL);
    completion_free(&completion);
    tiny_prompts_free(&prompts);
    compact_work_destroy(&work);
    free(memory);
    free(output);
    engine_close(&engine);
}
END_TEST

int main(void)
{
    tiny_require();
    Suite *suite = suite_create("engine recomputed");
    TCase *tc = tcase_create("recomputed");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, cache_is_that_of_the_plain_model, 0, POLICIES);
    suite_add_tcase(suite, tc);
    return tiny_suite(suite);
}
