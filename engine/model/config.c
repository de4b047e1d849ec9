/* config.c: see config.h. Defaults are those of transformers' LlamaConfig. */
#include "engine/model/config.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model/arch.h"
#include "engine/model/filemap.h"

/* One object of a file, for messages that say where a key was looked for. */
struct scope {
    const char *folder, *file;
    const char *parent; /* "rope_scaling." or "" */
    const json_t *object;
    struct kvf_err *err;
};

static int key_fail(const struct scope *in, enum kvf_code code, const char *key, const char *expected,
                    const json_t *got)
{
    char *text = got == NULL ? NULL : json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = text == NULL ? kvf_fail(in->err, code, "%s/%s: %s%s is missing, expected %s", in->folder, in->file,
                                     in->parent, key, expected)
                          : kvf_fail(in->err, code, "%s/%s: %s%s: expected %s, got %.80s", in->folder, in->file,
                                     in->parent, key, expected, text);
    free(text);
    return rc;
}

static const json_t *key_get(const struct scope *in, const char *key)
{
    const json_t *value = json_object_get(in->object, key);
    return json_is_null(value) ? NULL : value;
}

/* An integer in [low, high]; a key that is absent or null gives `fallback`, or is an error when that is negative. */
static int key_int(const struct scope *in, const char *key, int64_t low, int64_t high, int64_t fallback, int *out)
{
    const json_t *value = key_get(in, key);
    char expected[80];
    snprintf(expected, sizeof expected, "an integer in %lld..%lld", (long long)low, (long long)high);
    if (value == NULL && fallback >= 0) {
        *out = (int)fallback;
        return KVF_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
        return key_fail(in, KVF_EINVAL, key, expected, value);
    *out = (int)json_integer_value(value);
    return KVF_OK;
}

/* A finite number above 0; absent gives `fallback`, or is an error when that is NaN. */
static int key_positive(const struct scope *in, const char *key, double fallback, double *out)
{
    const json_t *value = key_get(in, key);
    if (value == NULL && !isnan(fallback)) {
        *out = fallback;
        return KVF_OK;
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number) || number <= 0)
        return key_fail(in, KVF_EINVAL, key, "a number above 0", value);
    *out = number;
    return KVF_OK;
}

static int key_bool(const struct scope *in, const char *key, int *out)
{
    const json_t *value = key_get(in, key);
    if (value != NULL && !json_is_boolean(value)) return key_fail(in, KVF_EINVAL, key, "true or false", value);
    *out = json_is_true(value);
    return KVF_OK;
}

static int rope_read(const struct scope *top, struct model_config *out)
{
    const json_t *parameters = key_get(top, "rope_parameters");
    const char *name = parameters != NULL ? "rope_parameters" : "rope_scaling";
    const json_t *object = parameters != NULL ? parameters : key_get(top, "rope_scaling");
    if (object != NULL && !json_is_object(object)) return key_fail(top, KVF_EINVAL, name, "an object or null", object);
    char parent[32];
    snprintf(parent, sizeof parent, "%s.", name);
    struct scope in = *top;
    in.parent = parent;
    in.object = object;
    const struct scope *theta_in = key_get(&in, "rope_theta") != NULL ? &in : top;
    int rc = key_positive(theta_in, "rope_theta", 10000.0, &out->rope_theta);
    if (rc != KVF_OK) return rc;
    const char *key = key_get(&in, "rope_type") != NULL ? "rope_type" : "type";
    const json_t *type = key_get(&in, key);
    if (type != NULL && !json_is_string(type)) return key_fail(&in, KVF_EINVAL, key, "a string", type);
    const char *text = type == NULL ? "default" : json_string_value(type);
    out->rope_factor = 1.0;
    if (strcmp(text, "default") == 0) {
        out->rope_type = ROPE_DEFAULT;
    } else if (strcmp(text, "linear") == 0) {
        out->rope_type = ROPE_LINEAR;
        rc = key_positive(&in, "factor", NAN, &out->rope_factor);
    } else if (strcmp(text, "llama3") == 0) {
        out->rope_type = ROPE_LLAMA3;
        rc = key_positive(&in, "factor", NAN, &out->rope_factor);
        if (rc == KVF_OK) rc = key_positive(&in, "low_freq_factor", NAN, &out->rope_low_freq_factor);
        if (rc == KVF_OK) rc = key_positive(&in, "high_freq_factor", NAN, &out->rope_high_freq_factor);
        if (rc == KVF_OK)
            rc = key_int(&in, "original_max_position_embeddings", 1, 1 << 30, -1, &out->rope_original_positions);
        if (rc == KVF_OK && out->rope_high_freq_factor <= out->rope_low_freq_factor)
            rc = kvf_fail(top->err, KVF_EINVAL, "%s/%s: %s: high_freq_factor %g is not above low_freq_factor %g",
                          top->folder, top->file, name, out->rope_high_freq_factor, out->rope_low_freq_factor);
    } else {
        rc = kvf_fail(top->err, KVF_EUNSUPPORTED,
                      "%s/%s: %s: rope type %s is not supported, expected default, linear or llama3", top->folder,
                      top->file, name, text);
    }
    return rc;
}

static int eos_read(const struct scope *in, struct model_config *out)
{
    const json_t *value = key_get(in, "eos_token_id");
    if (value == NULL) return KVF_OK;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > MODEL_MAX_EOS)
        return kvf_fail(in->err, KVF_EUNSUPPORTED, "%s/%s: eos_token_id: %zu ids, at most %d are supported", in->folder,
                        in->file, count, MODEL_MAX_EOS);
    out->eos_count = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= out->vocab) {
            char expected[80];
            snprintf(expected, sizeof expected, "token ids below vocab_size %d", out->vocab);
            return key_fail(in, KVF_EINVAL, "eos_token_id", expected, id);
        }
        out->eos_ids[out->eos_count++] = (int)json_integer_value(id);
    }
    return KVF_OK;
}

static int architecture_read(const struct scope *in, struct model_config *out)
{
    const json_t *list = key_get(in, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const struct arch *arch;
    if (name != NULL) {
        arch = arch_find(name);
    } else {
        const json_t *type = key_get(in, "model_type");
        name = json_string_value(type);
        if (name == NULL) return key_fail(in, KVF_EINVAL, "architectures", "a list with a class name", list);
        arch = arch_find_type(name);
    }
    if (arch == NULL) {
        char known[256];
        return kvf_fail(in->err, KVF_EUNSUPPORTED, "%s/%s: architecture %.80s is not supported, expected %s",
                        in->folder, in->file, name, arch_names(known, sizeof known));
    }
    snprintf(out->architecture, sizeof out->architecture, "%s", arch->name);
    return KVF_OK;
}

static int numbers_read(const struct scope *in, struct model_config *out)
{
    double eps = 0;
    int rc = KVF_OK;
#define READ(call)                                                                                                     \
    do {                                                                                                               \
        rc = (call);                                                                                                   \
        if (rc != KVF_OK) return rc;                                                                                   \
    } while (0)
    READ(key_int(in, "hidden_size", 1, 1 << 20, -1, &out->hidden));
    READ(key_int(in, "intermediate_size", 1, INT_MAX, -1, &out->ffn));
    READ(key_int(in, "num_hidden_layers", 1, CONFIG_MAX_LAYERS, -1, &out->layers));
    READ(key_int(in, "num_attention_heads", 1, 1 << 14, -1, &out->heads));
    READ(key_int(in, "num_key_value_heads", 1, 1 << 14, out->heads, &out->kv_heads));
    READ(key_int(in, "vocab_size", 1, 1 << 24, -1, &out->vocab));
    READ(key_int(in, "max_position_embeddings", 1, 1 << 30, 2048, &out->max_positions));
    READ(key_positive(in, "rms_norm_eps", 1e-6, &eps));
    out->norm_eps = (float)eps;
    READ(key_bool(in, "tie_word_embeddings", &out->tied));
    READ(key_bool(in, "attention_bias", &out->attention_bias));
    READ(key_bool(in, "mlp_bias", &out->mlp_bias));
    if (out->heads % out->kv_heads != 0)
        return kvf_fail(in->err, KVF_EINVAL, "%s/%s: %d heads are not a multiple of %d key-value heads", in->folder,
                        in->file, out->heads, out->kv_heads);
    if (key_get(in, "head_dim") == NULL && out->hidden % out->heads != 0)
        return kvf_fail(in->err, KVF_EINVAL,
                        "%s/%s: hidden_size %d is not a multiple of %d heads, and head_dim is missing", in->folder,
                        in->file, out->hidden, out->heads);
    READ(key_int(in, "head_dim", 2, 1 << 14, out->hidden / out->heads, &out->head_dim));
    if (out->head_dim % 2 != 0)
        return kvf_fail(in->err, KVF_EINVAL, "%s/%s: head_dim %d is odd, and rotary embedding needs pairs", in->folder,
                        in->file, out->head_dim);
    int bos = -1;
    if (key_get(in, "bos_token_id") != NULL) READ(key_int(in, "bos_token_id", 0, out->vocab - 1, -1, &bos));
    out->bos_id = bos;
    READ(eos_read(in, out));
#undef READ
    return KVF_OK;
}

/* What would change the result and is not computed here. */
static int features_refuse(const struct scope *in)
{
    const json_t *act = key_get(in, "hidden_act");
    if (act != NULL && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return key_fail(in, KVF_EUNSUPPORTED, "hidden_act", "\"silu\"", act);
    const json_t *rotary = key_get(in, "partial_rotary_factor");
    if (rotary != NULL && json_number_value(rotary) != 1.0)
        return key_fail(in, KVF_EUNSUPPORTED, "partial_rotary_factor", "1", rotary);
    if (key_get(in, "quantization_config") != NULL)
        return kvf_fail(in->err, KVF_EUNSUPPORTED,
                        "%s/%s: quantization_config: quantised weights are not supported, expected bf16, f16 or f32",
                        in->folder, in->file);
    return KVF_OK;
}

int config_read(const char *folder, struct model_config *out, struct kvf_err *err)
{
    *out = (struct model_config){.bos_id = -1};
    json_t *object = NULL;
    int rc = json_read(folder, "config.json", &object, err);
    if (rc != KVF_OK) return rc;
    struct scope in = {.folder = folder, .file = "config.json", .parent = "", .object = object, .err = err};
    rc = architecture_read(&in, out);
    if (rc == KVF_OK) rc = numbers_read(&in, out);
    if (rc == KVF_OK) rc = features_refuse(&in);
    if (rc == KVF_OK) rc = rope_read(&in, out);
    json_decref(object);
    if (rc != KVF_OK || !filemap_exists(folder, "generation_config.json")) return rc;
    rc = json_read(folder, "generation_config.json", &object, err);
    if (rc != KVF_OK) return rc;
    in.file = "generation_config.json";
    in.object = object;
    rc = eos_read(&in, out);
    json_decref(object);
    return rc;
}
