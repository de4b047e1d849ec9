/* model.c: see model.h. Binds the tensors that the architecture's row names to the mapped files. */
#include "engine/model/model.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model/arch.h"
#include "engine/model/config.h"
#include "engine/model/hash.h"
#include "engine/model/weightset.h"

struct model_files {
    struct weightset set;
};

static const struct {
    const char *name;
    enum model_dtype dtype;
    int bytes;
} weight_dtypes[] = {{"F32", DTYPE_F32, 4}, {"F16", DTYPE_F16, 2}, {"BF16", DTYPE_BF16, 2}};

static int weight_bind(struct model *model, const char *folder, const char *name, const struct arch_tensor *want,
                       struct weight *out, struct kvf_err *err)
{
    const char *file = NULL;
    struct weightset *set = &model->files->set;
    const struct tensor *tensor = weightset_find(set, name, &file);
    if (tensor == NULL) return kvf_fail(err, KVF_ENOTFOUND, "%s: tensor %s is missing from the weights", folder, name);
    int64_t rows = arch_dim_size(&model->config, want->rows), cols = arch_dim_size(&model->config, want->cols);
    int vector = want->rows == DIM_ONE;
    int fits = vector ? tensor->dims == 1 && tensor->shape[0] == cols
                      : tensor->dims == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
    if (!fits) {
        char shape[200];
        tensor_shape_text(tensor, shape, sizeof shape);
        if (vector)
            return kvf_fail(err, KVF_EINVAL, "%s/%s: %s: shape %s, expected [%lld] (%s of config.json)", folder, file,
                            name, shape, (long long)cols, arch_dim_name(want->cols));
        return kvf_fail(err, KVF_EINVAL, "%s/%s: %s: shape %s, expected [%lld, %lld] (%s, %s of config.json)", folder,
                        file, name, shape, (long long)rows, (long long)cols, arch_dim_name(want->rows),
                        arch_dim_name(want->cols));
    }
    for (size_t i = 0; i < sizeof weight_dtypes / sizeof *weight_dtypes; i++) {
        if (strcmp(weight_dtypes[i].name, tensor->dtype) != 0) continue;
        const void *data = weightset_aligned(set, tensor, weight_dtypes[i].bytes);
        if (data == NULL)
            return kvf_fail(err, KVF_ENOMEM, "%s/%s: %s: out of memory for %lld bytes", folder, file, name,
                            (long long)tensor->bytes);
        *out = (struct weight){.dtype = weight_dtypes[i].dtype, .rows = rows, .cols = cols, .data = data};
        model->weights_bytes += tensor->bytes;
        model->parameters += tensor->elements;
        return KVF_OK;
    }
    return kvf_fail(err, KVF_EUNSUPPORTED, "%s/%s: %s: dtype %s is not supported, expected BF16, F16 or F32", folder,
                    file, name, tensor->dtype);
}

static int model_bind(struct model *model, const struct arch *arch, const char *folder, struct kvf_err *err)
{
    const struct model_config *config = &model->config;
    for (int i = 0; i < arch->global_count; i++) {
        const struct arch_tensor *want = &arch->global[i];
        if (!arch_tensor_exists(config, want)) continue;
        int rc = weight_bind(model, folder, want->name, want, (struct weight *)((char *)model + want->field), err);
        if (rc != KVF_OK) return rc;
    }
    if (config->tied) model->lm_head = model->embed;
    model->layer = calloc((size_t)config->layers, sizeof *model->layer);
    if (model->layer == NULL)
        return kvf_fail(err, KVF_ENOMEM, "%s: out of memory for %d layers", folder, config->layers);
    for (int layer = 0; layer < config->layers; layer++) {
        for (int i = 0; i < arch->layer_count; i++) {
            const struct arch_tensor *want = &arch->layer[i];
            if (!arch_tensor_exists(config, want)) continue;
            char name[128];
            snprintf(name, sizeof name, "%s%d.%s", arch->layer_prefix, layer, want->name);
            struct weight *field = (struct weight *)((char *)&model->layer[layer] + want->field);
            int rc = weight_bind(model, folder, name, want, field, err);
            if (rc != KVF_OK) return rc;
        }
    }
    return KVF_OK;
}

/* "models/x/" and "." name the folder that they stand for. */
static void model_name(const char *folder, char *name, size_t cap)
{
    char real[PATH_MAX];
    const char *path = realpath(folder, real) != NULL ? real : folder;
    const char *slash = strrchr(path, '/');
    snprintf(name, cap, "%.*s", (int)cap - 1, slash == NULL || slash[1] == '\0' ? path : slash + 1);
}

static int model_load(struct model *model, const char *folder, struct kvf_err *err)
{
    int rc = config_read(folder, &model->config, err);
    if (rc != KVF_OK) return rc;
    model->files = calloc(1, sizeof *model->files);
    if (model->files == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", folder);
    rc = weightset_open(folder, &model->files->set, err);
    if (rc == KVF_OK) rc = model_bind(model, arch_find(model->config.architecture), folder, err);
    if (rc == KVF_OK) rc = hash_files(folder, &model->files->set.names, model->hash, err);
    model_name(folder, model->name, sizeof model->name);
    return rc;
}

int model_open(const char *folder, struct model **out, struct kvf_err *err)
{
    *out = NULL;
    struct model *model = calloc(1, sizeof *model);
    if (model == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", folder);
    int rc = model_load(model, folder, err);
    if (rc != KVF_OK) {
        model_close(&model);
        return rc;
    }
    *out = model;
    return KVF_OK;
}

void model_close(struct model **model)
{
    if (*model == NULL) return;
    if ((*model)->files != NULL) weightset_close(&(*model)->files->set);
    free((*model)->files);
    free((*model)->layer);
    free(*model);
    *model = NULL;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f, mantissa = half & 0x3ff;
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

float weight_at(const struct weight *weight, int64_t index)
{
    switch (weight->dtype) {
    case DTYPE_F32:
        return ((const float *)weight->data)[index];
    case DTYPE_F16:
        return float_of_half(((const uint16_t *)weight->data)[index]);
    case DTYPE_BF16:
        return float_of_bits((uint32_t)((const uint16_t *)weight->data)[index] << 16);
    }
    return 0;
}
