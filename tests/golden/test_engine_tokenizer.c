/* Ids, bytes and streamed text of the reference tokenizers: $KVF_GOLDEN/models, and the prompts of tiny-reasoner. */
#include "engine/tokenizer/tokenizer.h"
#include "tests/golden/engine_cases.h"

static const char *const models[] = {"llama3-rope", "llama-tied", "qwen2", "qwen2-yarn", "qwen3", "mistral"};
#define MODEL_COUNT ((int)(sizeof models / sizeof *models))

static struct tokenizer *tokenizer_of(const char *folder, int vocab)
{
    struct tokenizer *tokenizer = NULL;
    struct kvf_err err = {""};
    int rc = tokenizer_open(folder, vocab, &tokenizer, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    return tokenizer;
}

typedef void row_check(struct tokenizer *tokenizer, const json_t *row, const char *where);

/* Calls `check` for every row of a file below $KVF_GOLDEN; returns how many there were. */
static int rows_each(const char *relative, row_check *check, struct tokenizer *tokenizer)
{
    json_t *rows = cases_rows(relative), *row;
    size_t index;
    json_array_foreach(rows, index, row)
    {
        char where[CASES_PATH];
        snprintf(where, sizeof where, "%s, row %zu", relative, index + 1);
        check(tokenizer, row, where);
    }
    int count = (int)index;
    json_decref(rows);
    return count;
}

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return c == '=' ? 0 : (int)(strchr(digits, c) - digits);
}

static char *base64_bytes(const json_t *value, size_t *len)
{
    const char *text = json_string_value(value);
    size_t size = json_string_length(value);
    char *out = malloc(size + 1);
    *len = 0;
    for (size_t i = 0; i + 3 < size; i += 4) {
        int bits = base64_digit(text[i]) << 18 | base64_digit(text[i + 1]) << 12 | base64_digit(text[i + 2]) << 6 |
                   base64_digit(text[i + 3]);
        for (int k = 0; k < 3 && (k == 0 || text[i + (size_t)k + 1] != '='); k++)
            out[(*len)++] = (char)(bits >> (16 - 8 * k));
    }
    return out;
}

static void ids_check(struct tokenizer *tokenizer, const char *text, size_t len, int add_special, const json_t *want,
                      const char *where)
{
    struct kvf_err err = {""};
    int32_t *ids;
    int count;
    int rc = tokenizer_encode(tokenizer, text, len, add_special, &ids, &count, &err);
    ck_assert_msg(rc == KVF_OK, "%s: %s", where, err.text);
    ck_assert_msg(count == (int)json_array_size(want), "%s: %d ids, expected %zu", where, count, json_array_size(want));
    for (int i = 0; i < count; i++) {
        int expected = (int)json_integer_value(json_array_get(want, (size_t)i));
        ck_assert_msg(ids[i] == expected, "%s: id %d is %d, expected %d", where, i, ids[i], expected);
    }
    free(ids);
}

static void encode_check(struct tokenizer *tokenizer, const json_t *row, const char *where)
{
    const json_t *text = json_object_get(row, "text"), *bytes = json_object_get(row, "bytes_b64");
    const json_t *want = json_object_get(row, "ids");
    int add_special = json_is_true(json_object_get(row, "add_special"));
    if (text != NULL) {
        ids_check(tokenizer, json_string_value(text), json_string_length(text), add_special, want, where);
        return;
    }
    size_t len;
    char *raw = base64_bytes(bytes, &len);
    ids_check(tokenizer, raw, len, add_special, want, where);
    free(raw);
}

static void text_check(const json_t *want, const char *got, int len, const char *where, size_t at)
{
    ck_assert_msg((size_t)len == json_string_length(want) && memcmp(got, json_string_value(want), (size_t)len) == 0,
                  "%s: stream[%zu] is \"%s\", expected \"%s\"", where, at, got, json_string_value(want));
}

static void decode_check(struct tokenizer *tokenizer, const json_t *row, const char *where)
{
    const json_t *ids = json_object_get(row, "ids"), *pieces = json_object_get(row, "pieces_b64");
    const json_t *stream = json_object_get(row, "stream");
    struct detok detok = {0};
    char out[2048];
    size_t index;
    json_t *value;
    ck_assert_uint_eq(json_array_size(stream), json_array_size(ids) + 1);
    json_array_foreach(ids, index, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        size_t len, want_len;
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &len);
        char *want = base64_bytes(json_array_get(pieces, index), &want_len);
        ck_assert_msg(len == want_len && memcmp(bytes, want, len) == 0, "%s: bytes of token %d differ", where, id);
        free(want);
        text_check(json_array_get(stream, index), out, detok_feed(&detok, tokenizer, id, out, sizeof out), where,
                   index);
    }
    text_check(json_array_get(stream, index), out, detok_flush(&detok, out, sizeof out), where, index);
}

static void model_check(const char *model, const char *file, row_check *check)
{
    char path[CASES_PATH], relative[256];
    snprintf(relative, sizeof relative, "models/%s", model);
    cases_path(path, "KVF_GOLDEN", relative);
    struct tokenizer *tokenizer = tokenizer_of(path, 384);
    snprintf(relative, sizeof relative, "models/%s/%s", model, file);
    ck_assert_int_gt(rows_each(relative, check, tokenizer), 5);
    tokenizer_close(&tokenizer);
}

START_TEST(encode_equals_reference)
{
    model_check(models[_i], "tokenizer_cases.jsonl", encode_check);
}
END_TEST

START_TEST(decode_equals_reference)
{
    model_check(models[_i], "decode_cases.jsonl", decode_check);
}
END_TEST

static void prompt_check(struct tokenizer *tokenizer, const json_t *row, const char *where)
{
    const char *prompt = json_string_value(json_object_get(row, "prompt")), *head = "<|user|>";
    const char *tail = strstr(prompt, "<|assistant|>");
    char *user = strndup(prompt + strlen(head), (size_t)(tail - prompt) - strlen(head)), *text;
    struct kvf_err err = {""};
    int rc = chat_render(tokenizer, "auto", user, &text, &err);
    ck_assert_msg(rc == KVF_OK, "%s: %s", where, err.text);
    ck_assert_str_eq(text, prompt);
    ids_check(tokenizer, text, strlen(text), !chat_has_bos(tokenizer, text), json_object_get(row, "prompt_ids"), where);
    struct detok detok = {0};
    char out[2048], decoded[8192] = "";
    size_t index;
    json_t *value;
    json_array_foreach(json_object_get(row, "prompt_ids"), index, value)
    {
        detok_feed(&detok, tokenizer, (int32_t)json_integer_value(value), out, sizeof out);
        strncat(decoded, out, sizeof decoded - strlen(decoded) - 1);
    }
    ck_assert_str_eq(decoded, prompt);
    free(text);
    free(user);
}

START_TEST(prompts_of_tiny_reasoner)
{
    char path[CASES_PATH];
    cases_path(path, "KVF_SOURCE", "models/tiny-reasoner");
    struct tokenizer *tokenizer = tokenizer_of(path, 264);
    ck_assert_str_eq(chat_family(tokenizer), "kvfleet-tiny");
    ck_assert_int_eq(rows_each("../tiny-reasoner/expected.jsonl", prompt_check, tokenizer), 40);
    tokenizer_close(&tokenizer);
}
END_TEST

int main(void)
{
    cases_require("KVF_GOLDEN");
    cases_require("KVF_SOURCE");
    TCase *tcase = tcase_create("reference");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, encode_equals_reference, 0, MODEL_COUNT);
    tcase_add_loop_test(tcase, decode_equals_reference, 0, MODEL_COUNT);
    tcase_add_test(tcase, prompts_of_tiny_reasoner);
    Suite *suite = suite_create("tokenizer");
    suite_add_tcase(suite, tcase);
    return cases_run(suite);
}
