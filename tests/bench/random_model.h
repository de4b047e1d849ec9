/* random_model.h: a model folder of a given shape with random weights, for benches where only the shape matters. */
#ifndef KVF_BENCH_RANDOM_MODEL_H
#define KVF_BENCH_RANDOM_MODEL_H

struct random_shape {
    const char *name;
    int layers, hidden, ffn, heads, kv_heads, head_dim, vocab, context_tokens;
};
/* HuggingFaceTB/SmolLM2-135M: its config.json, without its weights. */
extern const struct random_shape random_smollm2_135m;

/* Writes config.json, model.safetensors (bf16, tied embeddings, normal-like numbers of deviation 0.02) and the
 * tokenizer files of `tokenizer_folder` into `folder`, which it makes; does nothing if a finished one is there. 0, or
 * -1 with a line on stderr. */
int random_model_write(const char *folder, const struct random_shape *shape, const char *tokenizer_folder);

#endif
