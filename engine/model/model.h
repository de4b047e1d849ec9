/* model.h: a Hugging Face folder as checked, memory-mapped tensors. Internal to engine/.
 *
 * model_open reads config.json, generation_config.json, model.safetensors or the shards that the index names, checks
 * every tensor the architecture needs (presence, dtype, shape, bounds, no overlap) and maps the files read-only;
 * nothing is copied. Architectures are rows of a table in arch.c: class name, tensor name patterns, which tensors are
 * optional. Hostile files: no crash, no hang (FIFO, directory), no read outside the folder, no allocation by a number
 * that the file made up. A struct model is immutable after model_open and may be shared between threads.
 */
#ifndef KVF_MODEL_H
#define KVF_MODEL_H

#include <stdint.h>
#include "alloc/err.h"

enum model_dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

/* A matrix [rows][cols], row-major, or a vector [1][cols]; data == NULL: the model has no such tensor. */
struct weight {
    enum model_dtype dtype;
    int64_t rows, cols;
    const void *data;
};

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 };

#define MODEL_MAX_EOS 16
struct model_config {
    char architecture[64]; /* "LlamaForCausalLM" */
    int layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_positions;
    float norm_eps;
    int tied, attention_bias, mlp_bias;
    enum rope_type rope_type;
    double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int rope_original_positions;
    int bos_id;                 /* -1: none */
    int eos_ids[MODEL_MAX_EOS]; /* generation_config.json over config.json */
    int eos_count;
};

struct model_layer {
    struct weight attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias;
    struct weight mlp_norm, gate, up, down, gate_bias, up_bias, down_bias;
};

struct model {
    struct model_config config;
    struct weight embed, final_norm, lm_head; /* lm_head == embed when tied */
    struct model_layer *layer;                /* [config.layers] */
    char hash[65];         /* hex SHA-256 over config.json and every weight file, names and contents, in name order */
    char name[128];        /* last component of the folder */
    int64_t weights_bytes; /* mapped tensor bytes */
    int64_t parameters;
    struct model_files *files; /* mappings */
};

KVF_MUSTCHECK int model_open(const char *folder, struct model **out, struct kvf_err *err);
void model_close(struct model **model);

/* Only the hash, for whoever names a model without loading it (the client). hex[65]. */
KVF_MUSTCHECK int model_hash_folder(const char *folder, char *hex, struct kvf_err *err);

/* Inverse frequencies [head_dim / 2] in double math rounded to float, as transformers' ROPE_INIT_FUNCTIONS compute them
 * (default, linear, llama3); the same table serves CPU and GPU. */
void model_rope_inv_freq(const struct model_config *config, float *inv_freq);

/* Element i of a weight as float (bf16, f16, f32); for tests and small vectors, not for hot loops. */
float weight_at(const struct weight *weight, int64_t index);

#endif
