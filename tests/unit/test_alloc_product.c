/* What holds for every policy there is: scorer x layer plan x head router, all that parse, on random models of a few
 * ragged layers: totals, bounds, what always stays, what must not matter, and how much a sequence can ever hold. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/plan.h"
#include "alloc/scorer.h"
#include "tests/unit/random.h"

#ifdef __SANITIZE_ADDRESS__
enum { SHAPES = 2, RUNS = 1 }; /* slow here: the other build tries them all */
#else
enum { SHAPES = 6, RUNS = 2 }; /* a combination; there are more than 200 */
#endif
enum { MOST_LAYERS = 3, MOST_HEADS = 3, MOST_GROUP = 2, MOST_DIM = 12, MOST_WINDOW = 6, MOST_ENTRIES = 64, HIDDEN = 5 };
enum { REFRESHES = 20 };

static float next_value(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += (float)(next_bits() >> 40) * 0x1p-24f - 0.5f;
    return 2.0f * sum;
}

/* ---- the product ---- */

static struct policy policies[512];
static char combination[512][96];
static int policy_count, combinations_tried;

static void policies_list(void)
{
    struct policy_part scorer, plan, router;
    for (int s = 0; policy_part_at(PART_SCORER, s, &scorer); s++)
        for (int p = 0; policy_part_at(PART_PLAN, p, &plan); p++)
            for (int r = 0; policy_part_at(PART_ROUTER, r, &router); r++) {
                char *text = combination[policy_count];
                snprintf(text, sizeof combination[0], "%s%s%s%s%s", scorer.name, p > 0 ? "+" : "",
                         p > 0 ? plan.name : "", r > 0 ? "+" : "", r > 0 ? router.name : "");
                combinations_tried++;
                if (policy_parse(text, &policies[policy_count], NULL) == KVF_OK) policy_count++;
            }
}

static struct policy parsed(const char *text)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_OK, "%s", err.text);
    return policy;
}

/* ---- a random model ---- */

struct layer {
    int entries[MOST_HEADS];
    float keys[MOST_HEADS][MOST_ENTRIES * MOST_DIM], values[MOST_HEADS][MOST_ENTRIES * MOST_DIM];
    float mass[MOST_HEADS][MOST_ENTRIES];
    int32_t positions[MOST_HEADS][MOST_ENTRIES];
    float queries[MOST_WINDOW * MOST_HEADS * MOST_GROUP * MOST_DIM];
    double demand[MOST_HEADS];
};
struct model {
    int layers, heads, group, d, window, sinks, budget;
    int32_t newest, protected_positions;
    struct layer layer[MOST_LAYERS];
    float frequency[MOST_DIM / 2], output[MOST_HEADS * MOST_GROUP * MOST_DIM * HIDDEN];
    struct wave_profile profile;
};

static void entry_make(const struct model *model, struct layer *layer, int h, int j, int32_t position)
{
    layer->positions[h][j] = position;
    layer->mass[h][j] = fabsf(next_value());
    for (int k = 0; k < model->d; k++) {
        /* A few directions, so that some keys are similar and some are not. */
        layer->keys[h][j * model->d + k] = (float)((position / 4 * 7 + k * 3) % 5 - 2) + 0.7f * next_value();
        layer->values[h][j * model->d + k] = next_value();
    }
}

static void queries_make(const struct model *model, struct layer *layer)
{
    for (int i = 0; i < model->window * model->heads * model->group * model->d; i++) layer->queries[i] = next_value();
}

/* ragged: heads, and layers, of different length; else all of one. shared: the heads of a layer hold the same positions
 * as each other, as those of a scorer that keeps one set do. */
static void model_make(struct model *model, int ragged, int shared)
{
    memset(model, 0, sizeof *model);
    model->layers = next_int(1, MOST_LAYERS);
    model->heads = next_int(1, MOST_HEADS);
    model->group = next_int(1, MOST_GROUP);
    model->d = 2 * next_int(1, MOST_DIM / 2);
    model->window = next_int(1, MOST_WINDOW);
    model->sinks = next_int(0, 2) == 0 ? next_int(1, 3) : 0;
    const int least = model->window + model->sinks + 1;
    const int length = next_int(least + 1, MOST_ENTRIES);
    model->budget = next_int(least, MOST_ENTRIES);
    model->profile.layers = model->layers;
    model->profile.kv_heads = model->heads;
    model->profile.has_demand_pooled = model->profile.has_layer_share = 1;
    for (int l = 0; l < model->layers; l++) {
        struct layer *layer = &model->layer[l];
        model->profile.demand[l] = 0.05 + fabs((double)next_value());
        model->profile.demand_pooled[l] = 0.05 + fabs((double)next_value());
        model->profile.layer_share[l] = 0.2 + fabs((double)next_value());
        queries_make(model, layer);
        for (int h = 0; h < model->heads; h++) {
            const int n = !ragged ? length : shared && h > 0 ? layer->entries[0] : next_int(least, MOST_ENTRIES);
            layer->entries[h] = n;
            int32_t position = -1;
            for (int j = 0; j < n; j++) {
                position = shared && h > 0 ? layer->positions[0][j] : position + next_int(1, 3);
                entry_make(model, layer, h, j, position);
            }
        }
    }
    model->newest = 3 * MOST_ENTRIES;
    for (int i = 0; i < model->d / 2; i++) model->frequency[i] = powf(10000.0f, -2.0f * (float)i / (float)model->d);
    for (int i = 0; i < model->heads * model->group * model->d * HIDDEN; i++) model->output[i] = next_value();
}

static int held_of(const struct model *model, int l)
{
    int held = 0;
    for (int h = 0; h < model->heads; h++) held += model->layer[l].entries[h];
    return held;
}

static struct policy fitted(struct policy policy, const struct model *model)
{
    policy.window_tokens = model->window;
    policy.sinks_tokens = model->sinks;
    return policy;
}

/* ---- one compaction of all layers, as an engine does it ---- */

struct result {
    int64_t layer_budget[MOST_LAYERS];
    int noop[MOST_LAYERS], count[MOST_LAYERS][MOST_HEADS];
    int32_t kept[MOST_LAYERS][MOST_HEADS][MOST_ENTRIES];
};

static int layer_run(const struct policy *policy, struct model *model, int l, struct compact_work *work,
                     double *statistic, struct result *result, struct kvf_err *err)
{
    struct layer *layer = &model->layer[l];
    const float *keys[MOST_HEADS], *values[MOST_HEADS], *mass[MOST_HEADS];
    const int32_t *positions[MOST_HEADS], *kept[MOST_HEADS];
    for (int h = 0; h < model->heads; h++) {
        keys[h] = layer->keys[h];
        values[h] = layer->values[h];
        mass[h] = layer->mass[h];
        positions[h] = layer->positions[h];
    }
    const struct compact_input input = {.kv_heads = model->heads,
                                        .group = model->group,
                                        .head_dim = model->d,
                                        .keys = keys,
                                        .values = values,
                                        .mass = mass,
                                        .positions = positions,
                                        .entries = layer->entries,
                                        .queries = layer->queries,
                                        .query_rows = model->window,
                                        .query_position = model->newest,
                                        .rope_frequency = model->frequency,
                                        .output = model->output,
                                        .hidden = HIDDEN,
                                        .protected_positions = model->protected_positions,
                                        .layer_budget = result->layer_budget[l],
                                        .random_key = 77,
                                        .demand = layer->demand};
    if (statistic != NULL) return plan_measure(policy, &input, NULL, work, statistic, err);
    const int rc = compact_layer(policy, &input, NULL, work, kept, result->count[l], &result->noop[l], err);
    for (int h = 0; rc == 0 && h < model->heads && !result->noop[l]; h++)
        memcpy(result->kept[l][h], kept[h], (size_t)result->count[l][h] * sizeof kept[h][0]);
    return rc;
}

static int model_compact(const struct policy *policy, struct model *model, struct result *result, struct kvf_err *err)
{
    memset(result, 0, sizeof *result);
    struct compact_work *work = compact_work_new(model->heads, model->group, model->d, model->window, MOST_ENTRIES);
    ck_assert_ptr_nonnull(work);
    double statistic[MOST_LAYERS];
    int64_t held[MOST_LAYERS];
    int rc = layer_plan_build(policy, &model->profile, model->layers, model->heads, model->budget, result->layer_budget,
                              err);
    for (int l = 0; rc == 0 && policy_plan_is_online(policy) && l < model->layers; l++) {
        held[l] = held_of(model, l);
        rc = layer_run(policy, model, l, work, &statistic[l], result, err);
    }
    if (rc == 0 && policy_plan_is_online(policy))
        rc = plan_refresh(policy, statistic, held, NULL, model->layers, model->heads, model->budget,
                          result->layer_budget, err);
    for (int l = 0; rc == 0 && l < model->layers; l++) rc = layer_run(policy, model, l, work, NULL, result, err);
    compact_work_destroy(&work);
    return rc;
}

static void model_compact_ok(const struct policy *policy, struct model *model, struct result *result)
{
    struct kvf_err err = {.text = ""};
    const int rc = model_compact(policy, model, result, &err);
    ck_assert_msg(rc == KVF_OK, "%s: %s", policy->name, err.text);
}

static int is_shared(const struct policy *policy)
{
    return scorer_at(policy->scorer)->shared_entries;
}

/* ---- properties ---- */

static void head_expect(const struct policy *policy, const struct model *model, const struct result *result, int l,
                        int h)
{
    const int n = model->layer[l].entries[h], count = result->count[l][h], always = model->window + model->sinks;
    const int32_t *kept = result->kept[l][h];
    const int least = always + (policy->router != ROUTER_ADA); /* Ada-KV's floor may round to nothing */
    ck_assert_int_le(count, n);
    ck_assert_int_ge(count, n < least ? n : least);
    for (int k = 1; k < count; k++) ck_assert_int_lt(kept[k - 1], kept[k]);
    ck_assert(kept[0] >= 0 && kept[count - 1] < n);
    for (int k = 0; k < model->sinks; k++) ck_assert_int_eq(kept[k], k);
    for (int k = 1; k <= model->window; k++) ck_assert_int_eq(kept[count - k], n - k);
}

START_TEST(totals_bounds_and_what_always_stays)
{
    static struct model model;
    static struct result result, again;
    int shapes = 0, compacted = 0;
    state = 11;
    for (int i = 0; i < policy_count; i++)
        for (int round = 0; round < SHAPES; round++, shapes++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            const struct policy policy = fitted(policies[i], &model);
            model_compact_ok(&policy, &model, &result);
            model_compact_ok(&policy, &model, &again);
            ck_assert_mem_eq(&result, &again, sizeof result);
            int64_t total = 0;
            for (int l = 0; l < model.layers; l++) {
                const int64_t budget = result.layer_budget[l];
                total += budget;
                ck_assert_int_ge(budget, (int64_t)model.heads * (model.window + model.sinks + 1));
                if (is_shared(&policy)) ck_assert_int_eq(budget % model.heads, 0);
                if (result.noop[l]) continue;
                compacted++;
                int64_t stay = 0, expected = 0;
                for (int h = 0; h < model.heads; h++) {
                    const int64_t share = budget / model.heads + (h < budget % model.heads);
                    const int n = model.layer[l].entries[h];
                    head_expect(&policy, &model, &result, l, h);
                    stay += result.count[l][h];
                    expected += share < n ? share : n;
                }
                ck_assert_int_eq(stay, policy.router == ROUTER_UNIFORM ? expected : budget);
            }
            ck_assert_int_eq(total, (int64_t)model.layers * model.heads * model.budget);
        }
    ck_assert_int_ge(shapes, RUNS == 1 ? 400 : 1000);
    ck_assert_int_ge(compacted, shapes / 2);
}
END_TEST

/* Heads in reverse order. */
static void model_turn(const struct model *model, struct model *turned)
{
    const int heads = model->heads, row = model->group * model->d;
    *turned = *model;
    for (int h = 0; h < heads; h++) {
        const int from = heads - 1 - h;
        memcpy(turned->output + h * row * HIDDEN, model->output + from * row * HIDDEN,
               (size_t)(row * HIDDEN) * sizeof(float));
        for (int l = 0; l < model->layers; l++) {
            const struct layer *a = &model->layer[l];
            struct layer *b = &turned->layer[l];
            b->entries[h] = a->entries[from];
            memcpy(b->keys[h], a->keys[from], sizeof a->keys[0]);
            memcpy(b->values[h], a->values[from], sizeof a->values[0]);
            memcpy(b->mass[h], a->mass[from], sizeof a->mass[0]);
            memcpy(b->positions[h], a->positions[from], sizeof a->positions[0]);
            for (int w = 0; w < model->window; w++)
                memcpy(b->queries + (w * heads + h) * row, a->queries + (w * heads + from) * row,
                       (size_t)row * sizeof(float));
        }
    }
}

START_TEST(permuted_heads_get_permuted_budgets)
{
    static struct model model, turned;
    static struct result result, other;
    int shapes = 0, compared = 0;
    state = 22;
    for (int i = 0; i < policy_count; i++) {
        /* `random` is keyed by head: another head, other numbers. */
        if (strcmp(scorer_at(policies[i].scorer)->name, "random") == 0 && policies[i].router != ROUTER_UNIFORM)
            continue;
        for (int round = 0; round < SHAPES; round++, shapes++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            model_turn(&model, &turned);
            const struct policy policy = fitted(policies[i], &model);
            model_compact_ok(&policy, &model, &result);
            model_compact_ok(&policy, &turned, &other);
            for (int l = 0; l < model.layers; l++) {
                /* An online plan sums over heads in another order: a unit may go to another layer. */
                ck_assert_int_le(llabs((long long)(result.layer_budget[l] - other.layer_budget[l])), 1);
                if (result.layer_budget[l] != other.layer_budget[l]) continue;
                /* What is left over goes to the first heads, and may be what the last one needs to be left alone. */
                const int64_t left_over = policy.router == ROUTER_UNIFORM ? result.layer_budget[l] % model.heads : 0;
                if (left_over == 0) ck_assert_int_eq(result.noop[l], other.noop[l]);
                if (result.noop[l] || other.noop[l]) continue;
                /* Equal fractions go by index: one unit, which the others may pass on. */
                for (int h = 0; h < model.heads; h++)
                    ck_assert_int_le(abs(result.count[l][h] - other.count[l][model.heads - 1 - h]), 1);
                compared++;
            }
        }
    }
    ck_assert_int_ge(shapes, RUNS == 1 ? 350 : 1000);
    ck_assert_int_ge(compared, shapes / 2);
}
END_TEST

START_TEST(budgets_above_all_lengths_do_nothing)
{
    static struct model model;
    static struct result result;
    int shapes = 0;
    state = 33;
    for (int i = 0; i < policy_count; i++)
        for (int round = 0; round < SHAPES; round++, shapes++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            model.budget = 40 * MOST_ENTRIES; /* the pyramid's last layer has a twentieth of it */
            const struct policy policy = fitted(policies[i], &model);
            model_compact_ok(&policy, &model, &result);
            for (int l = 0; l < model.layers; l++) ck_assert_int_eq(result.noop[l], 1);
        }
    ck_assert_int_ge(shapes, RUNS == 1 ? 400 : 1000);
}
END_TEST

/* Parameters that make a plan or a router uniform. For cake there are none: layers that are alike do it. */
static void neutral_spell(const struct policy *policy, char *text, size_t cap, int variant)
{
    static const char *const plans[] = {
        [PLAN_UNIFORM] = "",   [PLAN_PYRAMID] = "+pyramid", [PLAN_WAVE] = "+wave", [PLAN_ZIGZAG] = "+zigzag",
        [PLAN_FILE] = "+file", [PLAN_DYNAMIC] = "+dynamic", [PLAN_CAKE] = "+cake",
    };
    static const char *const plan_keys[] = {
        [PLAN_UNIFORM] = "", [PLAN_PYRAMID] = "pyramid-beta=1", [PLAN_WAVE] = "gamma=0", [PLAN_ZIGZAG] = "zigzag-min=1",
        [PLAN_FILE] = "",    [PLAN_DYNAMIC] = "gamma=0",        [PLAN_CAKE] = "",
    };
    const char *router = "", *router_key = "";
    if (policy->router == ROUTER_ADA) {
        router = "+ada";
        router_key = variant % 2 ? "alpha=1" : "alpha=1,floor=protect";
    } else if (policy->router == ROUTER_REASONALLOC) {
        router = "+reasonalloc";
        router_key = "beta=0";
    }
    const char *plan_key = plan_keys[policy->plan];
    snprintf(text, cap, "%s%s%s%s%s%s%s", scorer_at(policy->scorer)->name, plans[policy->plan], router,
             *plan_key || *router_key ? ":" : "", plan_key, *plan_key && *router_key ? "," : "", router_key);
}

/* What these parameters leave without effect, which is why nobody may write it out beside them. */
static void idle_set(struct policy *policy, int variant)
{
    if (policy->router == ROUTER_ADA && policy->floor == FLOOR_BLEND)
        policy->scores = variant / 2 % 2 ? SCORES_RELATIVE : SCORES_RAW;
    if (policy->router == ROUTER_REASONALLOC) {
        policy->scores = variant % 2 ? SCORES_RELATIVE : SCORES_RAW;
        policy->utility = variant % 2 ? UTILITY_COUNT : UTILITY_MASS;
        policy->mu = variant / 2 % 2 ? 1 : 0.25;
    }
    if (policy->plan == PLAN_WAVE || policy->plan == PLAN_DYNAMIC) {
        policy->clip_low = variant / 2 % 2 ? 0.9 : 0.25;
        policy->clip_high = variant % 2 ? 1.1 : 2;
        policy->rho = variant % 2 ? 0.5 : 0.93;
    }
}

START_TEST(uniform_parts_equal_the_plain_scorer)
{
    static struct model model;
    static struct result result, other;
    int shapes = 0, compacted = 0;
    state = 44;
    for (int i = 0; i < policy_count; i++)
        for (int round = 0; round < SHAPES; round++, shapes++) {
            char text[128];
            neutral_spell(&policies[i], text, sizeof text, round);
            model_make(&model, 0, is_shared(&policies[i]));
            for (int l = 0; l < model.layers; l++) {
                model.profile.layer_share[l] = 0.3;
                if (policies[i].plan == PLAN_CAKE) model.layer[l] = model.layer[0];
            }
            struct policy policy = fitted(parsed(text), &model);
            idle_set(&policy, round);
            const struct policy plain = fitted(parsed(scorer_at(policy.scorer)->name), &model);
            model_compact_ok(&policy, &model, &result);
            model_compact_ok(&plain, &model, &other);
            ck_assert_msg(memcmp(&result, &other, sizeof result) == 0, "%s is not %s", text, plain.name);
            for (int l = 0; l < model.layers; l++) compacted += !result.noop[l];
        }
    ck_assert_int_ge(shapes, RUNS == 1 ? 400 : 1000);
    ck_assert_int_ge(compacted, shapes / 2);
}
END_TEST

/* One number that is none, in something that the policy reads: an error, or it had no part in any decision. */
START_TEST(no_broken_number_decides)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static struct model model;
    static struct result result, clean;
    int shapes = 0, refused = 0;
    state = 55;
    for (int i = 0; i < policy_count; i++)
        for (int round = 0; round < SHAPES; round++, shapes++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            const struct policy policy = fitted(policies[i], &model);
            const unsigned needs = scorer_at(policy.scorer)->needs;
            model_compact_ok(&policy, &model, &clean);
            const int l = next_int(0, model.layers - 1), h = next_int(0, model.heads - 1);
            struct layer *layer = &model.layer[l];
            const int past = layer->entries[h] - model.window, j = model.sinks + next_int(0, past - model.sinks - 1);
            const int in_values = (needs & NEEDS_VALUES) && round % 2;
            float *at = &layer->keys[h][j * model.d];
            if (needs & NEEDS_MASS) at = &layer->mass[h][j];
            if (in_values) at = &layer->values[h][j * model.d];
            *at = bad[round % 3];
            struct kvf_err err = {.text = ""};
            if (model_compact(&policy, &model, &result, &err) != KVF_OK) {
                refused++;
                ck_assert_msg(strstr(err.text, "expected a finite number") != NULL, "%s: %s", policy.name, err.text);
                continue;
            }
            /* Not read where the layer fits, or a value where its head keeps everything. An infinite logit of weight 0
             * is no attention at all. */
            const int unread =
                clean.noop[l] || result.noop[l] || (in_values && result.count[l][h] == layer->entries[h]);
            if (unread || (round % 3 != 0 && !(needs & NEEDS_MASS) && !in_values)) continue;
            ck_assert_msg(memcmp(&result, &clean, sizeof result) == 0, "%s: %g changes what stays", policy.name,
                          (double)bad[round % 3]);
            const char *name = scorer_at(policy.scorer)->name;
            /* CriticalKV weighs no value of an entry that attention alone keeps. */
            if (in_values && strcmp(name, "critical-kv") == 0) continue;
            ck_assert_msg(strcmp(name, "streaming") == 0 || strcmp(name, "random") == 0, "%s takes %g", policy.name,
                          (double)bad[round % 3]);
        }
    ck_assert_int_ge(shapes, RUNS == 1 ? 400 : 1000);
    ck_assert_int_ge(refused, shapes / 4);
}
END_TEST

START_TEST(protected_entries_stay)
{
    static struct model model;
    static struct result result;
    int shapes = 0, refused = 0, compacted = 0;
    state = 66;
    for (int i = 0; i < policy_count; i++)
        for (int round = 0; round < SHAPES; round++, shapes++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            const struct policy policy = fitted(policies[i], &model);
            model.protected_positions = next_int(1, MOST_ENTRIES);
            struct kvf_err err = {.text = ""};
            if (model_compact(&policy, &model, &result, &err) != KVF_OK) {
                refused++;
                ck_assert_msg(strstr(err.text, "protected prompt") != NULL, "%s", err.text);
                continue;
            }
            for (int l = 0; l < model.layers; l++)
                for (int h = 0; h < model.heads && !result.noop[l]; h++) {
                    const struct layer *layer = &model.layer[l];
                    head_expect(&policy, &model, &result, l, h);
                    for (int j = 0; j < layer->entries[h] && layer->positions[h][j] < model.protected_positions; j++)
                        ck_assert_int_eq(result.kept[l][h][j], j);
                    compacted++;
                }
        }
    ck_assert(refused > shapes / 10 && compacted > shapes / 10);
}
END_TEST

/* A protected beginning is the same as that many sinks, to head budgets and to a scorer's final choice. */
START_TEST(protected_entries_are_sinks)
{
    static struct model model;
    static struct result result, other;
    int compacted = 0;
    state = 67;
    for (int i = 0; i < policy_count; i++) {
        /* Sinks are in no softmax of Expected Attention, a prompt is. */
        const int same = strcmp(scorer_at(policies[i].scorer)->name, "expected-attention") != 0;
        for (int round = 0; same && policies[i].plan == PLAN_UNIFORM && round < 5 * SHAPES; round++) {
            model_make(&model, round % 3 != 0, is_shared(&policies[i]));
            const int first = next_int(1, 12);
            model.sinks = 0;
            model.budget = next_int(model.window + first + 1, MOST_ENTRIES);
            for (int l = 0; l < model.layers; l++)
                for (int h = 0; h < model.heads; h++) {
                    struct layer *layer = &model.layer[l];
                    if (layer->entries[h] < model.window + first) layer->entries[h] = model.window + first;
                    for (int j = 0; j < layer->entries[h]; j++) entry_make(&model, layer, h, j, j);
                }
            struct policy policy = fitted(policies[i], &model);
            model.protected_positions = first;
            model_compact_ok(&policy, &model, &result);
            policy.sinks_tokens = first;
            model.protected_positions = 0;
            model_compact_ok(&policy, &model, &other);
            ck_assert_msg(memcmp(&result, &other, sizeof result) == 0, "%s", policy.name);
            for (int l = 0; l < model.layers; l++) compacted += !result.noop[l];
        }
    }
    ck_assert_int_gt(compacted, RUNS == 1 ? 100 : 500);
}
END_TEST

/* ---- how much a sequence can ever hold ---- */

enum pattern { ONE_HEAD, ALTERNATING, EQUAL, ANY, PATTERNS };

/* Entries that came since the last compaction, `count` to every head, and what the pattern says about all of them. */
static void model_grow(struct model *model, int count, enum pattern pattern, int refresh)
{
    for (int l = 0; l < model->layers; l++) {
        struct layer *layer = &model->layer[l];
        queries_make(model, layer);
        for (int h = 0; h < model->heads; h++) {
            for (int k = 0; k < count; k++) entry_make(model, layer, h, layer->entries[h] + k, model->newest + 1 + k);
            layer->entries[h] += count;
            const int favoured = pattern == ONE_HEAD ? 0 : refresh % model->heads;
            for (int j = 0; j < layer->entries[h] && pattern != ANY; j++) {
                layer->mass[h][j] = pattern == EQUAL ? 1.0f : h == favoured ? 1000.0f + next_value() : 0.001f;
                if (pattern == EQUAL)
                    for (int k = 0; k < model->d; k++) layer->keys[h][j * model->d + k] = 1.0f;
            }
            /* Attention goes where the keys are long. */
            for (int x = 0; x < layer->entries[h] * model->d && pattern < EQUAL; x++)
                layer->keys[h][x] = h == favoured ? 9.0f : 0.01f * layer->keys[h][x];
        }
    }
    model->newest += count;
}

static void model_pack(struct model *model, const struct result *result)
{
    const int d = model->d;
    for (int l = 0; l < model->layers; l++)
        for (int h = 0; h < model->heads && !result->noop[l]; h++) {
            struct layer *layer = &model->layer[l];
            for (int k = 0; k < result->count[l][h]; k++) {
                const int from = result->kept[l][h][k];
                layer->positions[h][k] = layer->positions[h][from];
                layer->mass[h][k] = layer->mass[h][from];
                memmove(&layer->keys[h][k * d], &layer->keys[h][from * d], (size_t)d * sizeof(float));
                memmove(&layer->values[h][k * d], &layer->values[h][from * d], (size_t)d * sizeof(float));
            }
            layer->entries[h] = result->count[l][h];
        }
}

START_TEST(peak_entries_stay_within_the_bound)
{
    static struct model model;
    static struct result result;
    state = 77;
    for (int i = 0; i < policy_count; i++) {
        if (policies[i].scorer == SCORER_NONE) continue;
        for (int round = 0; round < RUNS; round++) {
            model_make(&model, 0, is_shared(&policies[i]));
            const struct policy policy = fitted(policies[i], &model);
            const int interval = next_int(1, 8), least = model.window + model.sinks + 1;
            /* Room in this test's arrays for a head that takes everything its layer has. */
            model.budget = next_int(least, least + 4);
            model.layers = model.profile.layers = next_int(1, 2);
            const int64_t total = (int64_t)model.layers * model.heads * model.budget;
            int64_t before[MOST_LAYERS] = {0};
            for (int l = 0; l < model.layers; l++)
                for (int h = 0; h < model.heads; h++) model.layer[l].entries[h] = 0;
            for (int refresh = 0; refresh < REFRESHES; refresh++) {
                const enum pattern pattern = (enum pattern)((i + round + refresh / 5) % PATTERNS);
                model_grow(&model, refresh == 0 ? model.budget : interval, pattern, refresh);
                int64_t all = 0;
                for (int l = 0; l < model.layers && refresh > 0; l++) {
                    const int64_t held = held_of(&model, l);
                    all += held;
                    ck_assert_msg(held <= before[l] + (int64_t)model.heads * interval,
                                  "%s refresh %d: layer %d holds %lld", policy.name, refresh, l, (long long)held);
                }
                ck_assert_int_le(all, total + (int64_t)model.layers * model.heads * interval);
                model_compact_ok(&policy, &model, &result);
                model_pack(&model, &result);
                for (int l = 0; l < model.layers; l++) {
                    before[l] = result.layer_budget[l];
                    ck_assert_int_le(held_of(&model, l), before[l]);
                }
            }
        }
    }
}
END_TEST

START_TEST(every_combination_is_there_or_refused_with_a_reason)
{
    int scorers = 0, combinations = 0;
    while (scorer_at(scorers) != NULL) scorers++;
    struct policy_part part;
    int plans = 0, routers = 0;
    while (policy_part_at(PART_PLAN, plans, &part)) plans++;
    while (policy_part_at(PART_ROUTER, routers, &part)) routers++;
    for (int s = 0; s < scorers; s++) {
        const struct scorer *scorer = scorer_at(s);
        combinations += s == SCORER_NONE ? 1 : scorer->shared_entries || scorer->incomparable ? plans : plans * routers;
    }
    ck_assert_int_eq(combinations_tried, scorers * plans * routers);
    ck_assert_int_eq(policy_count, combinations);
    ck_assert_int_ge(policy_count, 200);
    for (int i = 0; i < policy_count; i++) {
        const struct policy again = parsed(policies[i].name);
        ck_assert_msg(memcmp(&again, &policies[i], sizeof again) == 0, "%s is called %s, which is another policy",
                      combination[i], policies[i].name);
        for (int j = 0; j < i; j++) ck_assert_str_ne(policies[j].name, policies[i].name);
    }
}
END_TEST

int main(void)
{
    policies_list();
    Suite *suite = suite_create("product");
    TCase *tc = tcase_create("every policy");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, every_combination_is_there_or_refused_with_a_reason);
    tcase_add_test(tc, totals_bounds_and_what_always_stays);
    tcase_add_test(tc, permuted_heads_get_permuted_budgets);
    tcase_add_test(tc, budgets_above_all_lengths_do_nothing);
    tcase_add_test(tc, uniform_parts_equal_the_plain_scorer);
    tcase_add_test(tc, no_broken_number_decides);
    tcase_add_test(tc, protected_entries_stay);
    tcase_add_test(tc, protected_entries_are_sinks);
    tcase_add_test(tc, peak_entries_stay_within_the_bound);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
