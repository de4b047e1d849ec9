#include "tests/bench/random_model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct random_shape random_smollm2_135m = {"SmolLM2-135M shape", 30, 576, 1536, 9, 3, 64, 49152, 8192};

struct tensor {
    char name[96];
    int64_t rows, cols; /* cols 0: a vector of ones */
};

static int tensor_at(const struct random_shape *shape, int index, struct tensor *out)
{
    static const char *const names[] = {"input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
                                        "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
                                        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    enum { KINDS = sizeof names / sizeof names[0] };
    const int hidden = shape->hidden, query = shape->heads * shape->head_dim, key = shape->kv_heads * shape->head_dim;
    const int64_t rows[KINDS] = {hidden, query, key, key, hidden, hidden, shape->ffn, shape->ffn, hidden};
    const int64_t cols[KINDS] = {0, hidden, hidden, hidden, query, 0, hidden, hidden, shape->ffn};
    if (index == 0) {
        *out = (struct tensor){"model.embed_tokens.weight", shape->vocab, hidden};
        return 1;
    }
    if (index == 1) {
        *out = (struct tensor){"model.norm.weight", hidden, 0};
        return 1;
    }
    const int layer = (index - 2) / KINDS, kind = (index - 2) % KINDS;
    if (layer >= shape->layers) return 0;
    *out = (struct tensor){.rows = rows[kind], .cols = cols[kind]};
    snprintf(out->name, sizeof out->name, "model.layers.%d.%s.weight", layer, names[kind]);
    return 1;
}

static int64_t tensor_bytes(const struct tensor *tensor)
{
    return 2 * tensor->rows * (tensor->cols == 0 ? 1 : tensor->cols);
}

static void tensor_write(FILE *file, const struct tensor *tensor, uint64_t *state)
{
    uint16_t block[4096];
    int64_t left = tensor_bytes(tensor) / 2;
    while (left > 0) {
        int count = left < 4096 ? (int)left : 4096;
        for (int i = 0; i < count; i++) {
            *state = *state * 6364136223846793005u + 1442695040888963407u;
            /* The sum of four even numbers in [-0.5, 0.5) has deviation 0.577; ones for norms. */
            float x = 0.0f;
            for (int part = 0; part < 4; part++) x += (float)(*state >> (16 * part) & 0xffff) / 65536.0f - 0.5f;
            x = tensor->cols == 0 ? 1.0f : x * (0.02f / 0.577f);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            block[i] = (uint16_t)(bits >> 16);
        }
        fwrite(block, sizeof *block, (size_t)count, file);
        left -= count;
    }
}

static int weights_write(const char *path, const struct random_shape *shape)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) return -1;
    static char header[1 << 20];
    size_t at = 0;
    int64_t offset = 0;
    struct tensor tensor;
    for (int i = 0; tensor_at(shape, i, &tensor); i++) {
        at += (size_t)snprintf(header + at, sizeof header - at, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%" PRId64,
                               i == 0 ? '{' : ',', tensor.name, tensor.rows);
        if (tensor.cols > 0) at += (size_t)snprintf(header + at, sizeof header - at, ",%" PRId64, tensor.cols);
        at += (size_t)snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", offset,
                               offset + tensor_bytes(&tensor));
        offset += tensor_bytes(&tensor);
    }
    header[at++] = '}';
    uint64_t size = at, state = 1;
    fwrite(&size, sizeof size, 1, file);
    fwrite(header, 1, at, file);
    for (int i = 0; tensor_at(shape, i, &tensor); i++) tensor_write(file, &tensor, &state);
    int failed = ferror(file);
    return fclose(file) != 0 || failed ? -1 : 0;
}

static int config_write(const char *path, const struct random_shape *shape)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) return -1;
    fprintf(file,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"num_hidden_layers\":%d,"
            "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
            "\"head_dim\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-05,"
            "\"rope_theta\":100000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
            "\"eos_token_id\":259}\n",
            shape->layers, shape->hidden, shape->ffn, shape->heads, shape->kv_heads, shape->head_dim, shape->vocab,
            shape->context_tokens);
    return fclose(file);
}

static int file_copy(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = in == NULL ? NULL : fopen(to, "wb");
    int failed = out == NULL;
    char block[65536];
    for (size_t got; !failed && (got = fread(block, 1, sizeof block, in)) > 0;)
        failed = fwrite(block, 1, got, out) != got;
    if (in != NULL) fclose(in);
    if (out != NULL && fclose(out) != 0) failed = 1;
    return failed ? -1 : 0;
}

int random_model_write(const char *folder, const struct random_shape *shape, const char *tokenizer_folder)
{
    static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer_config.json"};
    char path[4096], from[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (access(path, R_OK) == 0) return 0; /* written last */
    int rc = mkdir(folder, 0755) != 0 && errno != EEXIST ? -1 : 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", tokenizer_folder, tokenizer_files[i]);
        snprintf(path, sizeof path, "%s/%s", folder, tokenizer_files[i]);
        rc = file_copy(from, path);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (rc == 0) rc = weights_write(path, shape);
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (rc == 0) rc = config_write(path, shape);
    if (rc != 0) fprintf(stderr, "writing a random model into %s: %s\n", folder, strerror(errno));
    return rc;
}
