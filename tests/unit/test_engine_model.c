/* Loading model folders that the test writes: values, both config spellings, hash, rope frequencies, and what is
 * refused. */
#include <check.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/model/model.h"

static char folder[] = "/tmp/kvfleet-model-XXXXXX";

static void file_write(const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, len, file), len);
    fclose(file);
}

static void file_remove(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* One layer: hidden 4, 2 heads of 2, one kv head, ffn 3, 5 tokens, tied. `changes`: JSON whose keys replace these. */
static void config_write(const char *changes)
{
    json_t *config =
        json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "architectures", "LlamaForCausalLM", "model_type",
                  "llama", "hidden_size", 4, "intermediate_size", 3, "num_hidden_layers", 1, "num_attention_heads", 2,
                  "num_key_value_heads", 1, "vocab_size", 5, "tie_word_embeddings", 1);
    json_t *more = json_loads(changes, 0, NULL);
    ck_assert_ptr_nonnull(more);
    json_object_update(config, more);
    json_decref(more);
    char *text = json_dumps(config, 0);
    file_write("config.json", text, strlen(text));
    free(text);
    json_decref(config);
}

static void tensor_add(json_t *header, const char *name, const char *dtype, int rows, int cols, int bytes, int *at)
{
    json_t *shape = rows == 0 ? json_pack("[i]", cols) : json_pack("[i,i]", rows, cols);
    int size = (rows == 0 ? 1 : rows) * cols * bytes;
    json_object_set_new(
        header, name,
        json_pack("{s:s, s:o, s:[i,i]}", "dtype", dtype, "shape", shape, "data_offsets", *at, *at + size));
    *at += size;
}

/* Every 2-byte item is 0x3c00: 1 as F16; F32 items of the embedding are 0.5. `pad` spaces end the header, so that the
 * data are aligned or not; `cut` bytes are missing at the end. */
static void weights_write(int pad, int cut)
{
    json_t *header = json_object();
    int at = 0;
    tensor_add(header, "model.embed_tokens.weight", "F32", 5, 4, 4, &at);
    tensor_add(header, "model.norm.weight", "BF16", 0, 4, 2, &at);
    tensor_add(header, "model.layers.0.input_layernorm.weight", "F16", 0, 4, 2, &at);
    tensor_add(header, "model.layers.0.self_attn.q_proj.weight", "F16", 4, 4, 2, &at);
    tensor_add(header, "model.layers.0.self_attn.k_proj.weight", "F16", 2, 4, 2, &at);
    tensor_add(header, "model.layers.0.self_attn.v_proj.weight", "F16", 2, 4, 2, &at);
    tensor_add(header, "model.layers.0.self_attn.o_proj.weight", "F16", 4, 4, 2, &at);
    tensor_add(header, "model.layers.0.post_attention_layernorm.weight", "F16", 0, 4, 2, &at);
    tensor_add(header, "model.layers.0.mlp.gate_proj.weight", "F16", 3, 4, 2, &at);
    tensor_add(header, "model.layers.0.mlp.up_proj.weight", "F16", 3, 4, 2, &at);
    tensor_add(header, "model.layers.0.mlp.down_proj.weight", "F16", 4, 3, 2, &at);
    tensor_add(header, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 0, 1, 4, &at);
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    size_t length = strlen(text), room = (length + 7) / 8 * 8 + (size_t)pad;
    unsigned char *file = malloc(8 + room + (size_t)at);
    memset(file, ' ', 8 + room);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(room >> (8 * i));
    memcpy(file + 8, text, length);
    free(text);
    for (int i = 0; i < at; i += 2) memcpy(file + 8 + room + i, "\x00\x3c", 2);
    for (int i = 0; i < 80; i += 4) memcpy(file + 8 + room + i, &(float){0.5f}, 4);
    file_write("model.safetensors", file, 8 + room + (size_t)at - (size_t)cut);
    free(file);
}

static struct model *opened(void)
{
    struct model *model = NULL;
    struct kvf_err err = {""};
    int rc = model_open(folder, &model, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    return model;
}

static void check_refused(const char *word)
{
    struct model *model = NULL;
    struct kvf_err err = {""};
    int rc = model_open(folder, &model, &err);
    ck_assert_msg(rc < 0 && model == NULL, "opened, expected a line with %s", word);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" is not in: %s", word, err.text);
}

START_TEST(values_of_every_dtype_at_any_place)
{
    config_write("{}");
    weights_write(_i, 0);
    struct model *model = opened();
    ck_assert_int_eq(model->embed.rows, 5);
    ck_assert_int_eq(model->embed.cols, 4);
    ck_assert(weight_at(&model->embed, 19) == 0.5f);
    ck_assert(model->lm_head.data == model->embed.data);
    ck_assert(weight_at(&model->final_norm, 3) == 0x1p-7f); /* 0x3c00 as BF16 */
    ck_assert(weight_at(&model->layer[0].down, 11) == 1.0f);
    ck_assert_uint_eq((uintptr_t)model->embed.data % 4, 0);
    ck_assert_uint_eq((uintptr_t)model->layer[0].q.data % 2, 0);
    ck_assert_ptr_null(model->layer[0].q_bias.data);
    ck_assert_int_eq(model->parameters, 20 + 4 + 4 + 16 + 8 + 8 + 16 + 4 + 36);
    ck_assert_int_eq(model->weights_bytes, 80 + 2 * (model->parameters - 20));
    ck_assert_int_eq(model->config.head_dim, 2);
    ck_assert_str_eq(model->name, strrchr(folder, '/') + 1);
    model_close(&model);
    ck_assert_ptr_null(model);
}
END_TEST

START_TEST(halves)
{
    static const uint16_t bits[] = {0x3c00, 0xc000, 0x0001, 0x8400, 0x7bff, 0x7c00};
    static const float want[] = {1, -2, 0x1p-24f, -0x1p-14f, 65504, INFINITY};
    struct weight weight = {.dtype = DTYPE_F16, .rows = 1, .cols = 6, .data = bits};
    for (int i = 0; i < 6; i++) ck_assert(weight_at(&weight, i) == want[i]);
}
END_TEST

START_TEST(both_spellings_say_the_same)
{
    static const char *const rows[] = {
        "{\"rope_theta\":5000.0,\"torch_dtype\":\"float16\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
        "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
        "{\"dtype\":\"float16\",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5000.0,\"factor\":8,"
        "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
    };
    config_write(rows[_i]);
    weights_write(0, 0);
    struct model *model = opened();
    const struct model_config *config = &model->config;
    ck_assert_int_eq(config->rope_type, ROPE_LLAMA3);
    ck_assert(config->rope_theta == 5000 && config->rope_factor == 8 && config->rope_low_freq_factor == 1);
    ck_assert(config->rope_high_freq_factor == 4 && config->rope_original_positions == 64);
    model_close(&model);
}
END_TEST

START_TEST(stop_ids)
{
    config_write("{\"eos_token_id\":1,\"bos_token_id\":2}");
    weights_write(0, 0);
    struct model *model = opened();
    ck_assert(model->config.eos_count == 1 && model->config.eos_ids[0] == 1 && model->config.bos_id == 2);
    model_close(&model);
    file_write("generation_config.json", "{\"eos_token_id\":[3,4]}", 22);
    model = opened();
    ck_assert(model->config.eos_count == 2 && model->config.eos_ids[0] == 3 && model->config.eos_ids[1] == 4);
    model_close(&model);
    file_write("generation_config.json", "{\"eos_token_id\":5}", 18);
    check_refused("eos_token_id");
    file_remove("generation_config.json");
}
END_TEST

START_TEST(configs_refused)
{
    static const struct {
        const char *changes, *word;
    } rows[] = {
        {"{\"architectures\":[\"Qwen2ForCausalLM\"]}", "Qwen2ForCausalLM"},
        {"{\"architectures\":null,\"model_type\":\"gpt2\"}", "gpt2"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", "yarn"},
        {"{\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}}", "dynamic"},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling.factor"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act"},
        {"{\"quantization_config\":{}}", "quantization_config"},
        {"{\"num_hidden_layers\":1000000000}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":2}", "model.layers.1."},
        {"{\"head_dim\":3}", "head_dim"},
        {"{\"head_dim\":4}", "num_attention_heads * head_dim"},
        {"{\"tie_word_embeddings\":false}", "lm_head.weight"},
        {"{\"attention_bias\":true}", "self_attn.q_proj.bias"},
        {"{\"mlp_bias\":true}", "mlp.gate_proj.bias"},
        {"{\"mlp_bias\":1}", "mlp_bias"},
        {"{\"vocab_size\":1e300}", "vocab_size"},
        {"{\"architectures\":[\"a\\nb\\u001b\"]}", "a\\nb\\x1b"},
    };
    weights_write(0, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        config_write(rows[i].changes);
        check_refused(rows[i].word);
    }
}
END_TEST

START_TEST(files_refused)
{
    config_write("{}");
    weights_write(0, 2);
    check_refused("past the end of the file");
    file_remove("model.safetensors");
    check_refused("no weights");
    file_remove("config.json");
    check_refused("config.json: No such file");
    struct model *model;
    struct kvf_err err = {""};
    ck_assert_int_eq(model_open("/nonexistent/folder", &model, &err), KVF_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/folder"));
}
END_TEST

/* Expected by hashlib over name NUL length8 contents of each file in name order. */
START_TEST(hash_is_of_names_and_contents)
{
    static const char config[] = "{\"architectures\":[\"LlamaForCausalLM\"]}";
    static const char index[] =
        "{\"weight_map\":{\"x\":\"z.safetensors\",\"y\":\"a.safetensors\",\"w\":\"z.safetensors\"}}";
    char hex[65];
    struct kvf_err err = {""};
    file_write("config.json", config, sizeof config - 1);
    file_write("model.safetensors", "weights", 7);
    ck_assert_int_eq(model_hash_folder(folder, hex, &err), KVF_OK);
    ck_assert_str_eq(hex, "167d9dc153f7aa3233bd4bd183ae67bd1e63d012cb4990eff398a33a32829c80");
    file_remove("model.safetensors");
    file_write("model.safetensors.index.json", index, sizeof index - 1);
    file_write("a.safetensors", "weights", 7);
    file_write("z.safetensors", "", 0);
    ck_assert_int_eq(model_hash_folder(folder, hex, &err), KVF_OK);
    ck_assert_str_eq(hex, "993faf91d31fe4644998217a3725806941584ebbf3087c6baf90593b1b474d4e");
    file_remove("a.safetensors");
    ck_assert_int_eq(model_hash_folder(folder, hex, &err), KVF_ENOTFOUND);
    file_remove("z.safetensors");
    file_remove("model.safetensors.index.json");
    config_write("{}");
    weights_write(0, 0);
    struct model *model = opened();
    ck_assert_int_eq(model_hash_folder(folder, hex, &err), KVF_OK);
    ck_assert_str_eq(hex, model->hash);
    model_close(&model);
}
END_TEST

START_TEST(rope_frequencies)
{
    /* theta 10000, head_dim 32; llama3 with factor 8, 1, 4, original 64: kept, blended, divided */
    static const double llama3[16] = {1.0,
                                      0.5623413251903491,
                                      0.24438459943539834,
                                      0.0643098724277271,
                                      0.013042256043820465,
                                      0.007029266564879364,
                                      0.003952847075210474,
                                      0.0022228492625486537,
                                      0.00125,
                                      0.0007029266564879364,
                                      0.0003952847075210474,
                                      0.00022228492625486534,
                                      0.000125,
                                      7.029266564879364e-05,
                                      3.952847075210474e-05,
                                      2.2228492625486534e-05};
    struct model_config config = {.head_dim = 32,
                                  .rope_type = ROPE_LLAMA3,
                                  .rope_theta = 10000,
                                  .rope_factor = 8,
                                  .rope_low_freq_factor = 1,
                                  .rope_high_freq_factor = 4,
                                  .rope_original_positions = 64};
    float frequency[16], plain[16];
    model_rope_inv_freq(&config, frequency);
    for (int i = 0; i < 16; i++) ck_assert(fabs(frequency[i] / llama3[i] - 1) < 1e-7);
    config.rope_type = ROPE_DEFAULT;
    model_rope_inv_freq(&config, plain);
    ck_assert(plain[0] == 1.0f && plain[4] == 0.1f && plain[8] == 0.01f);
    config.rope_type = ROPE_LINEAR;
    model_rope_inv_freq(&config, frequency);
    for (int i = 0; i < 16; i++) ck_assert(frequency[i] == plain[i] / 8);
}
END_TEST

int main(void)
{
    if (mkdtemp(folder) == NULL) return EXIT_FAILURE;
    TCase *tcase = tcase_create("model");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, values_of_every_dtype_at_any_place, 0, 4);
    tcase_add_test(tcase, halves);
    tcase_add_loop_test(tcase, both_spellings_say_the_same, 0, 2);
    tcase_add_test(tcase, stop_ids);
    tcase_add_test(tcase, configs_refused);
    tcase_add_test(tcase, files_refused);
    tcase_add_test(tcase, hash_is_of_names_and_contents);
    tcase_add_test(tcase, rope_frequencies);
    Suite *suite = suite_create("model");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    file_remove("config.json");
    file_remove("model.safetensors");
    rmdir(folder);
    return failed > 0;
}
