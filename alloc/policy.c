/* policy.c: the preset table and the parameter table. */
#include "alloc/policy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* alloc.md: window 8, kernel 7, T 0.5, lambda 0.1 (R-KV paper), gamma = beta = 0.5, mu 0.25, clip [0.25, 2]
 * (ReasonAlloc). */
#define PRESET(label, score, layers, heads, kind, sinks)                                                               \
    {                                                                                                                  \
        .name = label, .scorer = score, .plan = layers, .router = heads, .scores = kind, .window_tokens = 8,           \
        .sinks_tokens = sinks, .kernel = 7, .lambda = 0.1, .similarity = 0.5, .gamma = 0.5, .clip_low = 0.25,          \
        .clip_high = 2, .beta = 0.5, .mu = 0.25                                                                        \
    }
static const struct policy presets[] = {
    PRESET("full", SCORER_NONE, PLAN_UNIFORM, ROUTER_UNIFORM, SCORES_RAW, 0),
    PRESET("streaming", SCORER_STREAMING, PLAN_UNIFORM, ROUTER_UNIFORM, SCORES_RAW, 4),
    PRESET("snapkv", SCORER_SNAPKV, PLAN_UNIFORM, ROUTER_UNIFORM, SCORES_RAW, 0),
    PRESET("rkv", SCORER_RKV, PLAN_UNIFORM, ROUTER_UNIFORM, SCORES_RAW, 0),
    PRESET("reasonalloc", SCORER_RKV, PLAN_WAVE, ROUTER_REASONALLOC, SCORES_RAW, 0),
    PRESET("reasonalloc-relative", SCORER_RKV, PLAN_WAVE, ROUTER_REASONALLOC, SCORES_RELATIVE, 0),
    PRESET("random", SCORER_RANDOM, PLAN_UNIFORM, ROUTER_UNIFORM, SCORES_RAW, 0),
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

enum key_kind { KEY_INT, KEY_ODD, KEY_REAL, KEY_SCORES };
static const struct key {
    const char *name;
    enum key_kind kind;
    size_t offset;
    double min, max;
    int rkv_only, attention, wave, router, any; /* which presets use it */
} keys[] = {
    {"window", KEY_INT, offsetof(struct policy, window_tokens), 1, 32, .any = 1},
    {"sinks", KEY_INT, offsetof(struct policy, sinks_tokens), 0, 1024, .any = 1},
    {"kernel", KEY_ODD, offsetof(struct policy, kernel), 1, 255, .attention = 1},
    {"lambda", KEY_REAL, offsetof(struct policy, lambda), 0, 1, .rkv_only = 1},
    {"similarity", KEY_REAL, offsetof(struct policy, similarity), -1, 1, .rkv_only = 1},
    {"gamma", KEY_REAL, offsetof(struct policy, gamma), 0, 8, .wave = 1},
    {"clip-low", KEY_REAL, offsetof(struct policy, clip_low), 0, 1, .wave = 1},
    {"clip-high", KEY_REAL, offsetof(struct policy, clip_high), 1, 1024, .wave = 1},
    {"beta", KEY_REAL, offsetof(struct policy, beta), 0, 8, .router = 1},
    {"mu", KEY_REAL, offsetof(struct policy, mu), 0, 1, .router = 1},
    {"scores", KEY_SCORES, offsetof(struct policy, scores), 0, 0, .router = 1},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static int key_used(const struct key *key, const struct policy *policy)
{
    const int attention = policy->scorer == SCORER_SNAPKV || policy->scorer == SCORER_RKV;
    return policy->scorer != SCORER_NONE &&
           (key->any || (key->attention && attention) || (key->rkv_only && policy->scorer == SCORER_RKV) ||
            (key->wave && policy->plan == PLAN_WAVE) || (key->router && policy->router == ROUTER_REASONALLOC));
}

const char *policy_preset_name(int index)
{
    return index >= 0 && index < PRESETS ? presets[index].name : NULL;
}

static int preset_unknown(const char *name, size_t len, struct kvf_err *err)
{
    char known[256] = "";
    for (int i = 0; i < PRESETS; i++) {
        if (i > 0) strcat(known, ", ");
        strcat(known, presets[i].name);
    }
    return kvf_fail(err, KVF_EINVAL, "policy '%.*s' is unknown, expected one of %s", (int)(len > 80 ? 80 : len), name,
                    known);
}

static int value_set(struct policy *policy, const struct key *key, const char *text, struct kvf_err *err)
{
    void *field = (char *)policy + key->offset;
    if (key->kind == KEY_SCORES) {
        if (strcmp(text, "raw") != 0 && strcmp(text, "relative") != 0)
            return kvf_fail(err, KVF_EINVAL, "policy %s: scores is '%s', expected raw or relative", policy->name, text);
        *(enum policy_scores *)field = strcmp(text, "raw") == 0 ? SCORES_RAW : SCORES_RELATIVE;
        return 0;
    }
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    int bad = text[strspn(text, "0123456789+-.eE")] != '\0' || end == text || *end != '\0' || errno != 0 ||
              !(value >= key->min && value <= key->max);
    bad = bad || (key->kind != KEY_REAL && value != floor(value)) || (key->kind == KEY_ODD && fmod(value, 2) != 1);
    if (bad)
        return kvf_fail(err, KVF_EINVAL, "policy %s: %s is '%s', expected %s from %g to %g", policy->name, key->name,
                        text,
                        key->kind == KEY_REAL  ? "a number"
                        : key->kind == KEY_ODD ? "an odd number"
                                               : "a whole number",
                        key->min, key->max);
    if (key->kind == KEY_REAL)
        *(double *)field = value + 0.0; /* -0 and 0 are one value and one spelling */
    else
        *(int *)field = (int)value;
    return 0;
}

static int key_value_parse(struct policy *policy, char *item, unsigned *seen, struct kvf_err *err)
{
    char *equals = strchr(item, '=');
    if (equals == NULL) return kvf_fail(err, KVF_EINVAL, "policy %s: '%s', expected key=value", policy->name, item);
    *equals = '\0';
    char used[160] = "";
    for (int i = 0; i < KEYS; i++) {
        if (!key_used(&keys[i], policy)) continue;
        if (strcmp(keys[i].name, item) == 0) {
            if (*seen & 1u << i) return kvf_fail(err, KVF_EINVAL, "policy %s: %s is given twice", policy->name, item);
            *seen |= 1u << i;
            return value_set(policy, &keys[i], equals + 1, err);
        }
        if (used[0] != '\0') strcat(used, ", ");
        strcat(used, keys[i].name);
    }
    return kvf_fail(err, KVF_EINVAL, "policy %s has no parameter '%s', expected one of: %s", policy->name, item,
                    used[0] != '\0' ? used : "none");
}

/* Preset name, then what differs from it, in table order. */
static int name_write(struct policy *policy, const struct policy *preset, struct kvf_err *err)
{
    char name[POLICY_NAME_MAX];
    size_t at = (size_t)snprintf(name, sizeof name, "%s", preset->name);
    int listed = 0;
    for (int i = 0; i < KEYS && at < sizeof name; i++) {
        const char *field = (const char *)policy + keys[i].offset, *was = (const char *)preset + keys[i].offset;
        const size_t size = keys[i].kind == KEY_REAL ? sizeof(double) : sizeof(int);
        if (memcmp(field, was, size) == 0) continue;
        at += (size_t)snprintf(name + at, sizeof name - at, "%c%s=", listed++ ? ',' : ':', keys[i].name);
        if (at >= sizeof name) break;
        if (keys[i].kind == KEY_REAL) {
            double value = *(const double *)field;
            char text[32];
            for (int digits = 1; digits <= 17; digits++) { /* the shortest spelling that reads back the same */
                snprintf(text, sizeof text, "%.*g", digits, value);
                if (strtod(text, NULL) == value) break;
            }
            at += (size_t)snprintf(name + at, sizeof name - at, "%s", text);
        } else if (keys[i].kind == KEY_SCORES) {
            at +=
                (size_t)snprintf(name + at, sizeof name - at, "%s", policy->scores == SCORES_RAW ? "raw" : "relative");
        } else {
            at += (size_t)snprintf(name + at, sizeof name - at, "%d", *(const int *)field);
        }
    }
    if (at >= sizeof name)
        return kvf_fail(err, KVF_EINVAL, "policy %s: the parameters are longer than %d characters", preset->name,
                        POLICY_NAME_MAX - 1);
    memset(policy->name, 0, sizeof policy->name);
    memcpy(policy->name, name, at);
    return 0;
}

int policy_parse(const char *text, struct policy *out, struct kvf_err *err)
{
    const size_t len = strcspn(text, ":");
    const struct policy *preset = NULL;
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == len && strncmp(presets[i].name, text, len) == 0) preset = &presets[i];
    if (preset == NULL) return preset_unknown(text, len, err);
    memset(out, 0, sizeof *out); /* padding too: policies are compared with memcmp */
    *out = *preset;
    if (text[len] == '\0') return 0;

    char list[512];
    if (strlen(text + len + 1) >= sizeof list)
        return kvf_fail(err, KVF_EINVAL, "policy %s: the parameters are longer than %zu characters", preset->name,
                        sizeof list - 1);
    strcpy(list, text + len + 1);
    char *rest = list;
    unsigned seen = 0;
    do {
        char *comma = strchr(rest, ',');
        if (comma != NULL) *comma = '\0';
        int rc = key_value_parse(out, rest, &seen, err);
        if (rc != 0) return rc;
        rest = comma != NULL ? comma + 1 : NULL;
    } while (rest != NULL);
    /* "reasonalloc:scores=relative" is the preset of that name: one policy, one spelling. */
    if (strncmp(preset->name, "reasonalloc", 11) == 0) {
        for (int i = 0; i < PRESETS; i++)
            if (presets[i].router == ROUTER_REASONALLOC && presets[i].scores == out->scores) preset = &presets[i];
    }
    return name_write(out, preset, err);
}

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
    return policy->plan == PLAN_WAVE;
}
