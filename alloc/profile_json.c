/* profile_json.c: the wave profile as a flat JSON document: strings, numbers and lists of numbers. */
#include "alloc/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROFILE_FORMAT 1

int profile_format(const struct wave_profile *profile, char *text, size_t cap, struct kvf_err *err)
{
    size_t at = 0;
#define PUT(...)                                                                                                       \
    do {                                                                                                               \
        at += (size_t)snprintf(text + at, cap - at, __VA_ARGS__);                                                      \
        if (at >= cap) return kvf_fail(err, KVF_ENOMEM, "wave profile does not fit in %zu bytes", cap);                \
    } while (0)
    PUT("{\n  \"kvfleet_wave_profile\": %d,\n  \"model_hash\": \"%s\",\n", PROFILE_FORMAT, profile->model_hash);
    PUT("  \"layers\": %d,\n  \"kv_heads\": %d,\n  \"window_tokens\": %d,\n", profile->layers, profile->kv_heads,
        profile->window_tokens);
    PUT("  \"rho\": %.17g,\n  \"probes\": %d,\n  \"samples\": %d,\n", profile->rho, profile->probes, profile->samples);
    const struct {
        const char *name;
        int there;
        const double *values;
    } lists[] = {{"demand", 1, profile->demand},
                 {"demand_pooled", profile->has_demand_pooled, profile->demand_pooled},
                 {"layer_share", profile->has_layer_share, profile->layer_share}};
    for (int i = 0; i < 3; i++) {
        if (!lists[i].there) continue;
        PUT("%s  \"%s\": [", i > 0 ? ",\n" : "", lists[i].name);
        for (int l = 0; l < profile->layers; l++) PUT("%s%.17g", l > 0 ? ", " : "", lists[i].values[l]);
        PUT("]");
    }
    PUT("\n}\n");
#undef PUT
    return 0;
}

struct reader {
    const char *at, *end, *begin;
    struct kvf_err *err;
};

static int syntax(const struct reader *reader, const char *expected)
{
    return kvf_fail(reader->err, KVF_EINVAL, "wave profile, byte %td: expected %s", reader->at - reader->begin,
                    expected);
}

static void space_skip(struct reader *reader)
{
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) != NULL && *reader->at != '\0') reader->at++;
}

static int symbol_take(struct reader *reader, char symbol)
{
    space_skip(reader);
    if (reader->at >= reader->end || *reader->at != symbol) return 0;
    reader->at++;
    return 1;
}

static int string_take(struct reader *reader, char *out, size_t cap)
{
    if (!symbol_take(reader, '"')) return syntax(reader, "a string");
    size_t len = 0;
    for (; reader->at < reader->end && *reader->at != '"'; reader->at++) {
        if ((unsigned char)*reader->at < 0x20 || *reader->at == '\\' || len + 1 >= cap)
            return syntax(reader, "a plain string without escapes");
        out[len++] = *reader->at;
    }
    out[len] = '\0';
    if (reader->at >= reader->end) return syntax(reader, "the end of a string");
    reader->at++;
    return 0;
}

static int number_take(struct reader *reader, double *out)
{
    space_skip(reader);
    char text[64];
    size_t len = 0;
    while (reader->at + len < reader->end && len + 1 < sizeof text &&
           strchr("0123456789+-.eE", reader->at[len]) != NULL && reader->at[len] != '\0') {
        text[len] = reader->at[len];
        len++;
    }
    text[len] = '\0';
    char *end;
    *out = strtod(text, &end);
    /* What strtod takes and JSON does not: a leading '+', '.' or needless 0, and a dot without digits after it. */
    const char *digits = text + (text[0] == '-'), *dot = strchr(text, '.');
    int loose = digits[0] < '0' || digits[0] > '9' || (digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') ||
                (dot != NULL && (dot[1] < '0' || dot[1] > '9'));
    if (len == 0 || loose || *end != '\0' || !isfinite(*out)) return syntax(reader, "a number");
    reader->at += len;
    return 0;
}

static int whole_take(struct reader *reader, const char *name, int min, int max, int *out)
{
    double value;
    int rc = number_take(reader, &value);
    if (rc != 0) return rc;
    if (value != floor(value) || value < min || value > max)
        return kvf_fail(reader->err, KVF_EINVAL, "wave profile: %s is %g, expected a whole number from %d to %d", name,
                        value, min, max);
    *out = (int)value;
    return 0;
}

static int list_take(struct reader *reader, const char *name, double *list, int *count)
{
    if (!symbol_take(reader, '[')) return syntax(reader, "a list");
    for (*count = 0; !symbol_take(reader, ']'); ++*count) {
        if (*count > 0 && !symbol_take(reader, ',')) return syntax(reader, "',' or ']'");
        if (*count == PROFILE_MAX_LAYERS)
            return kvf_fail(reader->err, KVF_EINVAL, "wave profile: %s has more than %d layers", name,
                            PROFILE_MAX_LAYERS);
        int rc = number_take(reader, &list[*count]);
        if (rc != 0) return rc;
        if (list[*count] < 0)
            return kvf_fail(reader->err, KVF_EINVAL, "wave profile: %s of layer %d is %g, expected 0 or more", name,
                            *count, list[*count]);
    }
    return 0;
}

int profile_parse(const char *text, size_t len, struct wave_profile *out, struct kvf_err *err)
{
    static const char *const names[] = {"kvfleet_wave_profile",
                                        "model_hash",
                                        "layers",
                                        "kv_heads",
                                        "window_tokens",
                                        "rho",
                                        "probes",
                                        "samples",
                                        "demand",
                                        "demand_pooled",
                                        "layer_share"};
    enum { NAMES = sizeof names / sizeof names[0], LISTS_FROM = 8, OPTIONAL_FROM };
    struct reader reader = {.at = text, .begin = text, .end = text + len, .err = err};
    int seen[NAMES] = {0}, format = 0, counted[NAMES - LISTS_FROM] = {0}, rc = 0;
    double *const lists[] = {out->demand, out->demand_pooled, out->layer_share};
    memset(out, 0, sizeof *out);
    if (!symbol_take(&reader, '{')) return syntax(&reader, "'{'");
    for (int first = 1; !symbol_take(&reader, '}'); first = 0) {
        char name[32];
        int key = 0;
        if (!first && !symbol_take(&reader, ',')) return syntax(&reader, "',' or '}'");
        if ((rc = string_take(&reader, name, sizeof name)) != 0) return rc;
        while (key < NAMES && strcmp(names[key], name) != 0) key++;
        if (key == NAMES) return kvf_fail(err, KVF_EINVAL, "wave profile: unknown key '%s'", name);
        if (seen[key]++) return kvf_fail(err, KVF_EINVAL, "wave profile: key '%s' is there twice", name);
        if (!symbol_take(&reader, ':')) return syntax(&reader, "':'");
        switch (key) {
        case 0:
            rc = whole_take(&reader, name, 0, 1 << 20, &format);
            break;
        case 1:
            rc = string_take(&reader, out->model_hash, sizeof out->model_hash);
            break;
        case 2:
            rc = whole_take(&reader, name, 1, PROFILE_MAX_LAYERS, &out->layers);
            break;
        case 3:
            rc = whole_take(&reader, name, 1, 1 << 20, &out->kv_heads);
            break;
        case 4:
            rc = whole_take(&reader, name, 1, 1 << 20, &out->window_tokens);
            break;
        case 5:
            rc = number_take(&reader, &out->rho);
            break;
        case 6:
            rc = whole_take(&reader, name, 0, 1 << 30, &out->probes);
            break;
        case 7:
            rc = whole_take(&reader, name, 0, 1 << 30, &out->samples);
            break;
        default:
            rc = list_take(&reader, name, lists[key - LISTS_FROM], &counted[key - LISTS_FROM]);
            break;
        }
        if (rc != 0) return rc;
    }
    space_skip(&reader);
    if (reader.at != reader.end) return syntax(&reader, "the end of the document");
    for (int key = 0; key < OPTIONAL_FROM; key++)
        if (!seen[key]) return kvf_fail(err, KVF_EINVAL, "wave profile: '%s' is missing", names[key]);
    if (format != PROFILE_FORMAT)
        return kvf_fail(err, KVF_EUNSUPPORTED, "wave profile: format %d, expected %d", format, PROFILE_FORMAT);
    for (int key = LISTS_FROM; key < NAMES; key++)
        if (seen[key] && counted[key - LISTS_FROM] != out->layers)
            return kvf_fail(err, KVF_EINVAL, "wave profile: %s of %d layers, expected %d", names[key],
                            counted[key - LISTS_FROM], out->layers);
    out->has_demand_pooled = seen[OPTIONAL_FROM];
    out->has_layer_share = seen[OPTIONAL_FROM + 1];
    if (strlen(out->model_hash) != PROFILE_HASH_HEX || strspn(out->model_hash, "0123456789abcdef") != PROFILE_HASH_HEX)
        return kvf_fail(err, KVF_EINVAL, "wave profile: model_hash '%s', expected %d hex digits", out->model_hash,
                        PROFILE_HASH_HEX);
    if (!(out->rho > 0 && out->rho <= 1))
        return kvf_fail(err, KVF_EINVAL, "wave profile: rho is %g, expected above 0 to 1", out->rho);
    return 0;
}
