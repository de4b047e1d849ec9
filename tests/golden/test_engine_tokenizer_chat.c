/* Prompt texts of the chat families for one user message: $KVF_GOLDEN/chat, and never a second BOS. */
#include <limits.h>
#include <unistd.h>
#include "engine/tokenizer/tokenizer.h"
#include "tests/golden/engine_cases.h"

/* Reference family -> our row, and the model folder whose own template says so ("auto"), or the BOS of a folder that
 * the test writes. `cases`: how many references there are with one user message. */
static const struct {
    const char *reference, *family, *folder, *bos;
    int cases;
} families[] = {
    {"r1-distill-llama", "r1-distill", NULL, "<｜begin▁of▁sentence｜>", 6},
    {"r1-distill-qwen", "r1-distill", NULL, "<｜begin▁of▁sentence｜>", 6},
    {"acereason", "r1-distill", NULL, "<｜begin▁of▁sentence｜>", 2},
    {"qwen2.5", "qwen2.5", NULL, NULL, 6},
    {"qwen3", "qwen3", NULL, NULL, 6},
    {"smollm2", "smollm2", NULL, NULL, 6},
    {"llama-3.1", "llama-3.1", NULL, "<|begin_of_text|>", 6},
    {"tiny llama3-rope", "r1-distill", "models/llama3-rope", NULL, 6},
    {"tiny qwen2", "chatml", "models/qwen2", NULL, 6},
};
#define FAMILY_COUNT ((int)(sizeof families / sizeof *families))

static struct tokenizer *tokenizer_of(const char *folder)
{
    struct tokenizer *tokenizer = NULL;
    struct kvf_err err = {""};
    int rc = tokenizer_open(folder, 384, &tokenizer, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    return tokenizer;
}

/* A folder with llama-tied's tokenizer and the given BOS, opened and removed. */
static struct tokenizer *tokenizer_with_bos(const char *bos)
{
    char folder[] = "/tmp/kvfleet-chat-XXXXXX", path[PATH_MAX], target[CASES_PATH];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    cases_path(target, "KVF_GOLDEN", "models/llama-tied/tokenizer.json");
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    ck_assert_int_eq(symlink(target, path), 0);
    char config[PATH_MAX];
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    json_t *value = bos == NULL ? json_pack("{sn}", "bos_token") : json_pack("{s{ss}}", "bos_token", "content", bos);
    ck_assert_int_eq(json_dump_file(value, config, 0), 0);
    json_decref(value);
    struct tokenizer *tokenizer = tokenizer_of(folder);
    unlink(path);
    unlink(config);
    rmdir(folder);
    return tokenizer;
}

START_TEST(prompt_equals_reference)
{
    struct tokenizer *tokenizer;
    const char *name = families[_i].family;
    if (families[_i].folder != NULL) {
        char path[CASES_PATH];
        cases_path(path, "KVF_GOLDEN", families[_i].folder);
        tokenizer = tokenizer_of(path);
        ck_assert_str_eq(chat_family(tokenizer), families[_i].family);
        name = "auto";
    } else {
        tokenizer = tokenizer_with_bos(families[_i].bos);
    }
    json_t *cases = cases_rows("chat/cases.jsonl"), *row;
    size_t index;
    int seen = 0;
    json_array_foreach(cases, index, row)
    {
        const json_t *messages = json_object_get(row, "messages"), *message = json_array_get(messages, 0);
        if (strcmp(cases_text(row, "family"), families[_i].reference) != 0 || json_array_size(messages) != 1 ||
            strcmp(cases_text(message, "role"), "user") != 0 ||
            !json_is_true(json_object_get(row, "add_generation_prompt")))
            continue;
        struct kvf_err err = {""};
        char *text;
        int rc = chat_render(tokenizer, name, cases_text(message, "content"), &text, &err);
        ck_assert_msg(rc == KVF_OK, "%s", err.text);
        ck_assert_str_eq(text, cases_text(row, "expected_text"));
        free(text);
        seen++;
    }
    ck_assert_int_eq(seen, families[_i].cases);
    json_decref(cases);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(llama31_drops_outer_space)
{
    struct tokenizer *tokenizer = tokenizer_with_bos("<B>");
    struct kvf_err err = {""};
    char *text;
    ck_assert_int_eq(chat_render(tokenizer, "llama-3.1", " \n\u3000x y\u00e9\x1c\n", &text, &err), KVF_OK);
    ck_assert_ptr_nonnull(strstr(text, "user<|end_header_id|>\n\nx y\u00e9<|eot_id|>"));
    free(text);
    tokenizer_close(&tokenizer);
}
END_TEST

static int bos_count(const struct tokenizer *tokenizer, const char *template_name, int32_t bos)
{
    struct kvf_err err = {""};
    char *text;
    ck_assert_int_eq(chat_render(tokenizer, template_name, "What is 2+2?", &text, &err), KVF_OK);
    int32_t *ids;
    int count, seen = 0;
    int rc = tokenizer_encode(tokenizer, text, strlen(text), !chat_has_bos(tokenizer, text), &ids, &count, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    ck_assert_int_eq(ids[0], bos);
    for (int i = 0; i < count; i++) seen += ids[i] == bos;
    free(ids);
    free(text);
    return seen;
}

START_TEST(one_bos_with_and_without_template)
{
    char path[CASES_PATH];
    cases_path(path, "KVF_GOLDEN", "models/llama3-rope");
    struct tokenizer *tokenizer = tokenizer_of(path);
    ck_assert_int_eq(bos_count(tokenizer, "auto", 368), 1);
    ck_assert_int_eq(bos_count(tokenizer, "raw", 368), 1);
    tokenizer_close(&tokenizer);
}
END_TEST

int main(void)
{
    cases_require("KVF_GOLDEN");
    TCase *tcase = tcase_create("chat");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, prompt_equals_reference, 0, FAMILY_COUNT);
    tcase_add_test(tcase, llama31_drops_outer_space);
    tcase_add_test(tcase, one_bos_with_and_without_template);
    Suite *suite = suite_create("chat");
    suite_add_tcase(suite, tcase);
    return cases_run(suite);
}
