/* arch.c: see arch.h. */
#include "engine/model/arch.h"

#include <string.h>

#define COUNT(list)    ((int)(sizeof(list) / sizeof *(list)))
#define GLOBAL(member) offsetof(struct model, member)
#define LAYER(member)  offsetof(struct model_layer, member)

static const struct arch_tensor llama_global[] = {
    {"model.embed_tokens.weight", GLOBAL(embed), DIM_VOCAB, DIM_HIDDEN, WHEN_ALWAYS},
    {"model.norm.weight", GLOBAL(final_norm), DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    {"lm_head.weight", GLOBAL(lm_head), DIM_VOCAB, DIM_HIDDEN, WHEN_UNTIED},
};

static const struct arch_tensor llama_layer[] = {
    {"input_layernorm.weight", LAYER(attn_norm), DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    {"self_attn.q_proj.weight", LAYER(q), DIM_QUERY, DIM_HIDDEN, WHEN_ALWAYS},
    {"self_attn.k_proj.weight", LAYER(k), DIM_KV, DIM_HIDDEN, WHEN_ALWAYS},
    {"self_attn.v_proj.weight", LAYER(v), DIM_KV, DIM_HIDDEN, WHEN_ALWAYS},
    {"self_attn.o_proj.weight", LAYER(o), DIM_HIDDEN, DIM_QUERY, WHEN_ALWAYS},
    {"self_attn.q_proj.bias", LAYER(q_bias), DIM_ONE, DIM_QUERY, WHEN_ATTENTION_BIAS},
    {"self_attn.k_proj.bias", LAYER(k_bias), DIM_ONE, DIM_KV, WHEN_ATTENTION_BIAS},
    {"self_attn.v_proj.bias", LAYER(v_bias), DIM_ONE, DIM_KV, WHEN_ATTENTION_BIAS},
    {"self_attn.o_proj.bias", LAYER(o_bias), DIM_ONE, DIM_HIDDEN, WHEN_ATTENTION_BIAS},
    {"post_attention_layernorm.weight", LAYER(mlp_norm), DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    {"mlp.gate_proj.weight", LAYER(gate), DIM_FFN, DIM_HIDDEN, WHEN_ALWAYS},
    {"mlp.up_proj.weight", LAYER(up), DIM_FFN, DIM_HIDDEN, WHEN_ALWAYS},
    {"mlp.down_proj.weight", LAYER(down), DIM_HIDDEN, DIM_FFN, WHEN_ALWAYS},
    {"mlp.gate_proj.bias", LAYER(gate_bias), DIM_ONE, DIM_FFN, WHEN_MLP_BIAS},
    {"mlp.up_proj.bias", LAYER(up_bias), DIM_ONE, DIM_FFN, WHEN_MLP_BIAS},
    {"mlp.down_proj.bias", LAYER(down_bias), DIM_ONE, DIM_HIDDEN, WHEN_MLP_BIAS},
};

static const struct arch archs[] = {
    {"LlamaForCausalLM", "llama", "model.layers.", llama_global, llama_layer, COUNT(llama_global), COUNT(llama_layer)},
};

const struct arch *arch_find(const char *name)
{
    for (int i = 0; i < COUNT(archs); i++)
        if (strcmp(archs[i].name, name) == 0) return &archs[i];
    return NULL;
}

const struct arch *arch_find_type(const char *model_type)
{
    for (int i = 0; i < COUNT(archs); i++)
        if (strcmp(archs[i].model_type, model_type) == 0) return &archs[i];
    return NULL;
}

char *arch_names(char *text, size_t cap)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < COUNT(archs) && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%s", i == 0 ? "" : ", ", archs[i].name);
    return text;
}

int64_t arch_dim_size(const struct model_config *config, enum arch_dim dim)
{
    switch (dim) {
    case DIM_ONE:
        return 1;
    case DIM_VOCAB:
        return config->vocab;
    case DIM_HIDDEN:
        return config->hidden;
    case DIM_FFN:
        return config->ffn;
    case DIM_QUERY:
        return (int64_t)config->heads * config->head_dim;
    case DIM_KV:
        return (int64_t)config->kv_heads * config->head_dim;
    }
    return 0;
}

const char *arch_dim_name(enum arch_dim dim)
{
    switch (dim) {
    case DIM_ONE:
        return "1";
    case DIM_VOCAB:
        return "vocab_size";
    case DIM_HIDDEN:
        return "hidden_size";
    case DIM_FFN:
        return "intermediate_size";
    case DIM_QUERY:
        return "num_attention_heads * head_dim";
    case DIM_KV:
        return "num_key_value_heads * head_dim";
    }
    return "";
}

int arch_tensor_exists(const struct model_config *config, const struct arch_tensor *tensor)
{
    switch (tensor->when) {
    case WHEN_ALWAYS:
        return 1;
    case WHEN_UNTIED:
        return !config->tied;
    case WHEN_ATTENTION_BIAS:
        return config->attention_bias;
    case WHEN_MLP_BIAS:
        return config->mlp_bias;
    }
    return 0;
}
