/* policy.c: parts and presets, and how a policy is read and spelled. */
#include "alloc/policy.h"

#include <string.h>

#include "alloc/policy_key.h"
#include "alloc/scorer.h"

static const struct part {
    const char *name, *source, *meaning;
} plans[] = {
    [PLAN_UNIFORM] = {"uniform", "", "every layer the same"},
    [PLAN_PYRAMID] = {"pyramid", "PyramidKV, arXiv 2406.02069", "falling linearly with depth"},
    [PLAN_WAVE] = {"wave", "ReasonAlloc, arXiv 2606.11164", "the wave profile's demand, smoothed and clipped"},
    [PLAN_ZIGZAG] = {"zigzag", "ZigZagKV, arXiv 2412.09036", "a floor, and the rest in proportion to demand"},
    [PLAN_FILE] = {"file", "", "weights from layer_share of the wave profile"},
    [PLAN_DYNAMIC] = {"dynamic", "after ReasonAlloc, arXiv 2606.11164, appendix C",
                      "wave, measured at every compaction"},
    [PLAN_CAKE] = {"cake", "CAKE, arXiv 2503.12491", "entropy and temporal variance of the window's attention"},
};
static const struct part routers[] = {
    [ROUTER_UNIFORM] = {"uniform", "", "every head the same"},
    [ROUTER_ADA] = {"ada", "Ada-KV, arXiv 2407.11550", "counts above a pooled threshold, with a floor"},
    [ROUTER_REASONALLOC] = {"reasonalloc", "ReasonAlloc, arXiv 2606.11164", "smoothed demand above a pooled threshold"},
};
enum { PLANS = sizeof plans / sizeof plans[0], ROUTERS = sizeof routers / sizeof routers[0] };

/* Combinations with a name of their own; REDUCE_METHOD leaves `reduce` to the scorer, and free. A scorer alone is a
 * preset by itself. */
static const struct preset {
    const char *name, *scorer, *source;
    enum policy_plan plan;
    enum policy_router router;
    enum policy_scores scores;
    enum policy_reduce reduce;
} presets[] = {
    {"pyramid-rkv", "rkv", "ReasonAlloc, arXiv 2606.11164", PLAN_PYRAMID, ROUTER_UNIFORM, SCORES_RAW, REDUCE_METHOD},
    {"ada-rkv", "rkv", "Ada-KV on R-KV's score", PLAN_UNIFORM, ROUTER_ADA, SCORES_RAW, REDUCE_METHOD},
    {"layer-only", "rkv", "ReasonAlloc, arXiv 2606.11164", PLAN_WAVE, ROUTER_UNIFORM, SCORES_RAW, REDUCE_METHOD},
    {"head-only", "rkv", "ReasonAlloc, arXiv 2606.11164", PLAN_UNIFORM, ROUTER_REASONALLOC, SCORES_RAW, REDUCE_METHOD},
    {"head-only-relative", "rkv", "head-only on comparable scores", PLAN_UNIFORM, ROUTER_REASONALLOC, SCORES_RELATIVE,
     REDUCE_METHOD},
    {"reasonalloc", "rkv", "ReasonAlloc, arXiv 2606.11164", PLAN_WAVE, ROUTER_REASONALLOC, SCORES_RAW, REDUCE_METHOD},
    {"reasonalloc-relative", "rkv", "reasonalloc on comparable scores", PLAN_WAVE, ROUTER_REASONALLOC, SCORES_RELATIVE,
     REDUCE_METHOD},
    {"zigzag-rkv", "rkv", "ZigZagKV on R-KV's score", PLAN_ZIGZAG, ROUTER_UNIFORM, SCORES_RAW, REDUCE_METHOD},
    {"cake", "snapkv", "CAKE, arXiv 2503.12491, on SnapKV's score", PLAN_CAKE, ROUTER_UNIFORM, SCORES_RAW,
     REDUCE_METHOD},
    {"dynamic", "rkv", "after ReasonAlloc, arXiv 2606.11164, appendix C", PLAN_DYNAMIC, ROUTER_REASONALLOC, SCORES_RAW,
     REDUCE_METHOD},
    {"ada-snapkv", "snapkv", "Ada-KV, arXiv 2407.11550, while decoding", PLAN_UNIFORM, ROUTER_ADA, SCORES_RAW,
     REDUCE_MEAN_PROB},
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

static const char full[] = "full"; /* what scorer none is called where it is a policy */

static int scorer_count(void)
{
    int count = 0;
    while (scorer_at(count) != NULL) count++;
    return count;
}

const char *policy_preset_name(int index)
{
    const int scorers = scorer_count();
    if (index < 0 || index >= scorers + PRESETS) return NULL;
    if (index >= scorers) return presets[index - scorers].name;
    return index == SCORER_NONE ? full : scorer_at(index)->name;
}

static int name_is(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && strncmp(name, text, len) == 0;
}

static int part_find(const struct part *parts, int count, const char *text, size_t len)
{
    for (int i = 0; i < count; i++)
        if (name_is(parts[i].name, text, len)) return i;
    return -1;
}

/* The preset that a combination is, or NULL. */
static const struct preset *preset_of(const struct policy *policy)
{
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].scorer, scorer_at(policy->scorer)->name) == 0 && presets[i].plan == policy->plan &&
            presets[i].router == policy->router && presets[i].scores == policy->scores &&
            (presets[i].reduce == REDUCE_METHOD || presets[i].reduce == policy->reduce))
            return &presets[i];
    return NULL;
}

/* ---- reading ---- */

static int policy_unknown(const char *text, size_t len, struct kvf_err *err)
{
    char known[512] = "";
    size_t at = 0;
    for (int i = 0; policy_preset_name(i) != NULL && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "", policy_preset_name(i));
    return kvf_fail(err, KVF_EINVAL, "policy '%.*s' is unknown, expected SCORER[+PLAN][+ROUTER] or one of %s",
                    (int)(len > 80 ? 80 : len), text, known);
}

static int part_unknown(const struct policy *policy, const char *text, size_t len, struct kvf_err *err)
{
    char known[256] = "";
    size_t at = 0;
    for (int i = 0; i < PLANS + ROUTERS; i++) {
        const char *name = i < PLANS ? plans[i].name : routers[i - PLANS].name;
        if (i != PLANS) at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "", name);
    }
    return kvf_fail(err, KVF_EINVAL, "policy %s: '%.*s' is no layer plan and no head router, expected one of %s",
                    policy->name, (int)(len > 80 ? 80 : len), text, known);
}

/* What follows the scorer: "+part+part", `len` characters. */
static int parts_parse(struct policy *policy, const char *text, size_t len, struct kvf_err *err)
{
    int plan_given = 0, router_given = 0, given = 0;
    while (len > 0) {
        text++, len--;
        const char *plus = memchr(text, '+', len);
        const size_t word = plus != NULL ? (size_t)(plus - text) : len;
        const int plan = part_find(plans, PLANS, text, word), router = part_find(routers, ROUTERS, text, word);
        if (plan < 0 && router < 0) return part_unknown(policy, text, word, err);
        if (++given > 2 || (plan > 0 && plan_given++) || (router > 0 && router_given++))
            return kvf_fail(err, KVF_EINVAL, "policy %s: '%.*s' is one too many, expected at most one %s", policy->name,
                            (int)word, text,
                            given > 2  ? "layer plan and one head router"
                            : plan > 0 ? "layer plan"
                                       : "head router");
        if (plan > 0) policy->plan = (enum policy_plan)plan;
        if (router > 0) policy->router = (enum policy_router)router;
        text += word, len -= word;
    }
    return 0;
}

static int combination_check(const struct policy *policy, struct kvf_err *err)
{
    const struct scorer *scorer = scorer_at(policy->scorer);
    const char *router = routers[policy->router].name;
    if (policy->scorer == SCORER_NONE && (policy->plan != PLAN_UNIFORM || policy->router != ROUTER_UNIFORM))
        return kvf_fail(err, KVF_EINVAL, "policy %s keeps everything: expected no layer plan and no head router", full);
    if (policy->router == ROUTER_UNIFORM) return 0;
    if (scorer->shared_entries)
        return kvf_fail(err, KVF_EINVAL,
                        "policy %s+%s: %s keeps the same entries in all heads of a layer, so router %s has nothing to "
                        "share out, expected no head router",
                        scorer->name, router, scorer->name, router);
    if (scorer->incomparable)
        return kvf_fail(err, KVF_EINVAL,
                        "policy %s+%s: router %s compares scores of different heads, those of %s are not on one scale, "
                        "expected no head router",
                        scorer->name, router, router, scorer->name);
    return 0;
}

/* The parameters that a preset sets. */
static void preset_fill(const struct preset *preset, struct policy *policy)
{
    policy->scores = preset->scores;
    policy->reduce = preset->reduce;
}

/* Scorer, plan, router and what a preset sets; every other parameter at its default. */
static int combination_parse(const char *text, size_t len, struct policy *out, struct kvf_err *err)
{
    const struct preset *preset = NULL;
    const char *plus = memchr(text, '+', len);
    const size_t first = plus != NULL ? (size_t)(plus - text) : len;
    for (int i = 0; i < PRESETS; i++)
        if (name_is(presets[i].name, text, first)) preset = &presets[i];
    if (preset != NULL && plus != NULL)
        return kvf_fail(err, KVF_EINVAL, "policy '%.*s': %s is a preset, expected a scorer before the first '+'",
                        (int)(len > 80 ? 80 : len), text, preset->name);
    if (preset != NULL)
        out->scorer = scorer_find(preset->scorer, (int)strlen(preset->scorer));
    else
        out->scorer = name_is(full, text, first) ? SCORER_NONE : first <= 80 ? scorer_find(text, (int)first) : -1;
    if (out->scorer < 0) return policy_unknown(text, len, err);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(len > 80 ? 80 : len),
             text); /* for messages until it is final */
    int rc = preset == NULL ? parts_parse(out, text + first, len - first, err) : 0;
    if (preset != NULL) {
        out->plan = preset->plan;
        out->router = preset->router;
    }
    if (rc == 0) rc = combination_check(out, err);
    if (rc != 0) return rc;
    keys_reset(out);
    if (preset != NULL) preset_fill(preset, out);
    return 0;
}

static int key_value_parse(struct policy *policy, char *item, uint64_t *seen, struct kvf_err *err)
{
    char *equals = strchr(item, '=');
    if (equals == NULL) return kvf_fail(err, KVF_EINVAL, "policy %s: '%s', expected key=value", policy->name, item);
    *equals = '\0';
    char used[512] = "";
    size_t at = 0;
    const struct policy_key *key;
    for (int i = 0; (key = key_at(i)) != NULL; i++) {
        if (!key_used(key, policy)) continue;
        if (strcmp(key->name, item) == 0) {
            if (*seen >> i & 1) return kvf_fail(err, KVF_EINVAL, "policy %s: %s is given twice", policy->name, item);
            *seen |= UINT64_C(1) << i;
            return key_set(key, policy, equals + 1, err);
        }
        if (at < sizeof used)
            at += (size_t)snprintf(used + at, sizeof used - at, "%s%s", at > 0 ? ", " : "", key->name);
    }
    return kvf_fail(err, KVF_EINVAL, "policy %s has no parameter '%.80s', expected one of: %s", policy->name, item,
                    used[0] != '\0' ? used : "none");
}

/* Preset or parts, then what differs from the defaults, in table order. */
static int name_write(struct policy *policy, struct kvf_err *err)
{
    char name[POLICY_NAME_MAX], value[32];
    const struct preset *preset = preset_of(policy);
    const struct scorer *scorer = scorer_at(policy->scorer);
    struct policy standard = *policy;
    keys_reset(&standard);
    if (preset != NULL) preset_fill(preset, &standard);
    const int plan = preset == NULL && policy->plan != PLAN_UNIFORM;
    const int router = preset == NULL && policy->router != ROUTER_UNIFORM;
    size_t at = (size_t)snprintf(name, sizeof name, "%s%s%s%s%s",
                                 preset != NULL                  ? preset->name
                                 : policy->scorer == SCORER_NONE ? full
                                                                 : scorer->name,
                                 plan ? "+" : "", plan ? plans[policy->plan].name : "", router ? "+" : "",
                                 router ? routers[policy->router].name : "");
    int listed = 0;
    const struct policy_key *key;
    for (int i = 0; (key = key_at(i)) != NULL && at < sizeof name; i++) {
        const double own = key_value(key, policy);
        if (own == key_value(key, &standard)) continue;
        key_print(key, own, value, sizeof value);
        at += (size_t)snprintf(name + at, sizeof name - at, "%c%s=%s", listed++ ? ',' : ':', key->name, value);
    }
    if (at >= sizeof name)
        return kvf_fail(err, KVF_EINVAL, "policy %s: the parameters are longer than %d characters", policy->name,
                        POLICY_NAME_MAX - 1);
    memset(policy->name, 0, sizeof policy->name);
    memcpy(policy->name, name, at);
    return 0;
}

int policy_parse(const char *text, struct policy *out, struct kvf_err *err)
{
    const size_t len = strcspn(text, ":");
    memset(out, 0, sizeof *out); /* padding too: policies are compared with memcmp */
    int rc = combination_parse(text, len, out, err);
    if (rc != 0) return rc;
    if (text[len] == ':') {
        char list[1024];
        if (strlen(text + len + 1) >= sizeof list)
            return kvf_fail(err, KVF_EINVAL, "policy %s: the parameters are longer than %zu characters", out->name,
                            sizeof list - 1);
        strcpy(list, text + len + 1);
        uint64_t seen = 0;
        for (char *rest = list, *comma; rest != NULL; rest = comma) {
            comma = strchr(rest, ',');
            if (comma != NULL) *comma++ = '\0';
            if ((rc = key_value_parse(out, rest, &seen, err)) != 0) return rc;
        }
        if ((rc = keys_idle_check(out, seen, err)) != 0) return rc;
    }
    return name_write(out, err);
}

/* ---- asking ---- */

int policy_check_budget(const struct policy *policy, int budget_tokens, int interval_tokens, struct kvf_err *err)
{
    if (policy->scorer == SCORER_NONE) return 0;
    const int least = policy->window_tokens + policy->sinks_tokens + 1;
    if (budget_tokens < least)
        return kvf_fail(err, KVF_EINVAL, "policy %s: budget %d, expected at least %d: window %d + sinks %d + 1",
                        policy->name, budget_tokens, least, policy->window_tokens, policy->sinks_tokens);
    if (interval_tokens < 1)
        return kvf_fail(err, KVF_EINVAL, "policy %s: interval %d, expected at least 1", policy->name, interval_tokens);
    return 0;
}

int policy_needs_profile(const struct policy *policy)
{
    return policy->plan == PLAN_WAVE || policy->plan == PLAN_ZIGZAG || policy->plan == PLAN_FILE;
}

int policy_plan_is_online(const struct policy *policy)
{
    return policy->plan == PLAN_DYNAMIC || policy->plan == PLAN_CAKE;
}

/* ---- listings ---- */

static void preset_print(const struct preset *preset, char *text, size_t cap)
{
    const int plan = preset->plan != PLAN_UNIFORM, router = preset->router != ROUTER_UNIFORM;
    snprintf(text, cap, "%s%s%s%s%s%s%s", preset->scorer, plan ? "+" : "", plan ? plans[preset->plan].name : "",
             router ? "+" : "", router ? routers[preset->router].name : "",
             preset->scores == SCORES_RELATIVE ? ":scores=relative" : "",
             preset->reduce == REDUCE_MEAN_PROB ? ":reduce=mean-prob" : "");
}

int policy_part_at(enum policy_part_kind kind, int index, struct policy_part *out)
{
    const int scorers = scorer_count();
    const int counts[] = {
        [PART_PRESET] = scorers + PRESETS, [PART_SCORER] = scorers, [PART_PLAN] = PLANS, [PART_ROUTER] = ROUTERS};
    if (index < 0 || index >= counts[kind]) return 0;
    memset(out, 0, sizeof *out);
    if (kind == PART_PLAN || kind == PART_ROUTER) {
        const struct part *part = kind == PART_PLAN ? &plans[index] : &routers[index];
        out->name = part->name;
        out->source = part->source;
        snprintf(out->meaning, sizeof out->meaning, "%s", part->meaning);
    } else if (index < scorers) {
        out->name = kind == PART_PRESET ? policy_preset_name(index) : scorer_at(index)->name;
        out->source = scorer_at(index)->source;
        if (kind == PART_PRESET) snprintf(out->meaning, sizeof out->meaning, "%s", scorer_at(index)->name);
    } else {
        out->name = presets[index - scorers].name;
        out->source = presets[index - scorers].source;
        preset_print(&presets[index - scorers], out->meaning, sizeof out->meaning);
    }
    return 1;
}

/* Appends a name to a list in text[cap]. */
static void name_append(char *text, size_t cap, const char *name)
{
    const size_t at = strlen(text);
    snprintf(text + at, cap - at, "%s%s", at > 0 ? ", " : "", name);
}

int policy_parameter_at(int index, struct policy_parameter *out)
{
    const struct policy_key *key = key_at(index);
    if (key == NULL) return 0;
    memset(out, 0, sizeof *out);
    out->name = key->name;
    out->meaning = key->meaning;
    key_range_print(key, out->values, sizeof out->values);
    key_print(key, key->standard, out->standard, sizeof out->standard);
    if (key->every) name_append(out->used_by, sizeof out->used_by, "every policy but full");
    for (int i = 0; !key->every && scorer_at(i) != NULL; i++)
        if (key_of_list(key, scorer_at(i)->keys)) name_append(out->used_by, sizeof out->used_by, scorer_at(i)->name);
    for (int i = 0; i < PLANS; i++)
        if (key->plans >> i & 1) name_append(out->used_by, sizeof out->used_by, plans[i].name);
    for (int i = 0; i < ROUTERS; i++)
        if (key->routers >> i & 1) name_append(out->used_by, sizeof out->used_by, routers[i].name);
    return 1;
}

int policy_parameter_of(const struct policy *policy, int index, char *value, size_t cap)
{
    const struct policy_key *key = key_at(index);
    if (key == NULL || !key_used(key, policy)) return 0;
    key_print(key, key_value(key, policy), value, cap);
    return 1;
}
