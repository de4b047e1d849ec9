/* What a tokenizer.json may ask for, over a vocabulary of the 256 bytes. Expected ids are those of the tokenizers
 * library 0.23.3 on the same files. */
#include <check.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/tokenizer/tokenizer.h"

#define VOCAB 300

static char folder[] = "/tmp/kvfleet-tokenizer-XXXXXX";

/* Bytes are ids 0...255; then " t", "he", " the", "aa", "aaaa" as 256...260. */
static json_t *base_new(void)
{
    json_t *vocab = json_object();
    for (int byte = 0, next = 0x100; byte < 256; byte++) {
        int prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        int c = prints ? byte : next++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            text[0] = (char)(0xc0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3f));
        }
        json_object_set_new(vocab, text, json_integer(byte));
    }
    const char *const words[] = {"\u0120t", "he", "\u0120the", "aa", "aaaa"};
    for (int i = 0; i < 5; i++) json_object_set_new(vocab, words[i], json_integer(256 + i));
    json_t *merges = json_pack("[s,[s,s],s,s,s]", "\u0120 t", "h", "e", "\u0120t he", "a a", "aa aa");
    json_t *model = json_pack("{s:s, s:o, s:o}", "type", "BPE", "vocab", vocab, "merges", merges);
    return json_pack("{s:[], s:n, s:{s:s, s:b, s:b}, s:o}", "added_tokens", "normalizer", "pre_tokenizer", "type",
                     "ByteLevel", "add_prefix_space", 0, "use_regex", 1, "model", model);
}

static void set(json_t *root, const char *key, const char *json)
{
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    ck_assert_ptr_nonnull(value);
    json_object_set_new(root, key, value);
}

static int try_open(json_t *root, struct tokenizer **tokenizer, struct kvf_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    ck_assert_int_eq(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return tokenizer_open(folder, VOCAB, tokenizer, err);
}

static struct tokenizer *opened(json_t *root)
{
    struct tokenizer *tokenizer = NULL;
    struct kvf_err err = {""};
    int rc = try_open(root, &tokenizer, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    return tokenizer;
}

static void check_ids(const struct tokenizer *tokenizer, const char *text, size_t len, int special, const char *want)
{
    struct kvf_err err = {""};
    int32_t *ids;
    int count;
    int rc = tokenizer_encode(tokenizer, text, len, special, &ids, &count, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    char got[1024] = "";
    for (int i = 0; i < count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i > 0 ? " " : "", ids[i]);
    ck_assert_str_eq(got, want);
    free(ids);
}
#define CHECK_IDS(tokenizer, text, want) check_ids(tokenizer, text, sizeof(text) - 1, 1, want)

START_TEST(merges_by_rank)
{
    struct tokenizer *tokenizer = opened(base_new());
    CHECK_IDS(tokenizer, "", "");
    CHECK_IDS(tokenizer, " the the", "258 258");
    CHECK_IDS(tokenizer, "aaaaaaa", "260 259 97");
    CHECK_IDS(tokenizer, "a\0b", "97 0 98");
    ck_assert_int_eq(tokenizer_token_id(tokenizer, "aa"), 259);
    ck_assert_int_eq(tokenizer_token_id(tokenizer, "absent"), -1);
    size_t len;
    ck_assert_int_eq(memcmp(tokenizer_token_bytes(tokenizer, 258, &len), " the", 4), 0);
    ck_assert_uint_eq(len, 4);
    tokenizer_token_bytes(tokenizer, VOCAB, &len);
    ck_assert_uint_eq(len, 0);
    tokenizer_token_bytes(tokenizer, -1, &len);
    ck_assert_uint_eq(len, 0);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(a_megabyte_of_one_letter)
{
    struct tokenizer *tokenizer = opened(base_new());
    size_t len = (1 << 20) + 3;
    char *text = malloc(len);
    memset(text, 'a', len);
    struct kvf_err err = {""};
    int32_t *ids;
    int count;
    ck_assert_int_eq(tokenizer_encode(tokenizer, text, len, 1, &ids, &count, &err), KVF_OK);
    ck_assert_int_eq(count, (1 << 18) + 2);
    ck_assert_int_eq(ids[0], 260);
    ck_assert_int_eq(ids[count - 2], 259);
    ck_assert_int_eq(ids[count - 1], 97);
    free(ids);
    free(text);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(ill_formed_bytes_become_replacements)
{
    struct tokenizer *tokenizer = opened(base_new());
    CHECK_IDS(tokenizer, "\xff", "239 191 189");
    CHECK_IDS(tokenizer, "\xe2\x82 ", "239 191 189 32");
    CHECK_IDS(tokenizer, "\xed\xa0\x80", "239 191 189 239 191 189 239 191 189");
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(added_tokens)
{
    json_t *root = base_new();
    set(root, "added_tokens",
        "[{\"id\":270,\"content\":\"<s>\",\"lstrip\":true,\"special\":true},"
        "{\"id\":271,\"content\":\"<s><s>\",\"rstrip\":true},"
        "{\"id\":272,\"content\":\"ab\",\"single_word\":true},"
        "{\"id\":273,\"content\":\"e\\u0301\",\"normalized\":true}]");
    set(root, "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}");
    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_true());
    struct tokenizer *tokenizer = opened(root);
    CHECK_IDS(tokenizer, "x \n<s> y", "120 270 32 121");
    CHECK_IDS(tokenizer, "x <s><s> \u3000y", "120 32 271 121");
    CHECK_IDS(tokenizer, "ab abc .ab", "272 32 97 98 99 32 46 272");
    CHECK_IDS(tokenizer, "\u24d0ab", "226 147 144 97 98");
    CHECK_IDS(tokenizer, "e\u0301 \u00e9 E\u0301", "273 32 273 32 195 137");
    ck_assert_int_eq(tokenizer_is_special(tokenizer, 270), 1);
    ck_assert_int_eq(tokenizer_is_special(tokenizer, 271), 0);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(pretokenizers)
{
    static const struct {
        const char *pretokenizer, *text, *want;
    } rows[] = {
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}", "the", "258"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "xaa aa", "120 259 32 259"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]}",
         "12", "32 49 32 50"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\".\"},"
         "\"behavior\":\"Removed\",\"invert\":false},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]}",
         "a.b", "32 97 32 98"},
        /* U+180E is white space to PCRE2, but not by its property */
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},"
         "\"behavior\":\"Isolated\",\"invert\":false},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]}",
         "a\u180eb", "32 97 225 160 142 98"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x*\"},"
         "\"behavior\":\"Isolated\",\"invert\":false},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
         "aaxaa", "97 97 120 97 97"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *root = base_new();
        set(root, "pre_tokenizer", rows[i].pretokenizer);
        struct tokenizer *tokenizer = opened(root);
        check_ids(tokenizer, rows[i].text, strlen(rows[i].text), 1, rows[i].want);
        tokenizer_close(&tokenizer);
    }
}
END_TEST

START_TEST(postprocessor_adds_ends)
{
    json_t *root = base_new();
    set(root, "added_tokens",
        "[{\"id\":270,\"content\":\"<s>\",\"special\":true},{\"id\":271,\"content\":\"</s>\",\"special\":true}]");
    set(root, "post_processor",
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],"
        "\"special_tokens\":{\"<s>\":{\"ids\":[270]},\"</s>\":{\"ids\":[271]}}}]}");
    struct tokenizer *tokenizer = opened(root);
    check_ids(tokenizer, "x", 1, 1, "270 120 271");
    check_ids(tokenizer, "x", 1, 0, "120");
    ck_assert_int_eq(chat_has_bos(tokenizer, "<s>x"), 1);
    ck_assert_int_eq(chat_has_bos(tokenizer, "x<s>"), 0);
    ck_assert_str_eq(chat_family(tokenizer), "raw");
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(detokenising_holds_back)
{
    json_t *root = base_new();
    set(root, "added_tokens", "[{\"id\":270,\"content\":\"<s>\",\"special\":true}]");
    struct tokenizer *tokenizer = opened(root);
    char out[2048];
    struct detok detok = {.skip_special = 1};
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 0xc3, out, sizeof out), 0);
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 270, out, sizeof out), 0);
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 0xa9, out, sizeof out), 2);
    ck_assert_str_eq(out, "\u00e9");
    detok.skip_special = 0;
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 0xf0, out, sizeof out), 0);
    detok_feed(&detok, tokenizer, 270, out, sizeof out);
    ck_assert_str_eq(out, "\ufffd<s>");
    detok_feed(&detok, tokenizer, 0x80, out, sizeof out);
    ck_assert_str_eq(out, "\ufffd");
    ck_assert_int_eq(detok_feed(&detok, tokenizer, VOCAB + 5, out, sizeof out), 0);
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 0xe2, out, sizeof out), 0);
    ck_assert_int_eq(detok_feed(&detok, tokenizer, 0x82, out, sizeof out), 0);
    detok_flush(&detok, out, sizeof out);
    ck_assert_str_eq(out, "\ufffd");
    ck_assert_int_eq(detok_flush(&detok, out, sizeof out), 0);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(what_is_not_supported_is_named)
{
    static const struct {
        const char *key, *json, *word;
    } rows[] = {
        {"normalizer", "{\"type\":\"Lowercase\"}", "Lowercase"},
        {"decoder", "{\"type\":\"WordPiece\"}", "WordPiece"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", "BertProcessing"},
        {"pre_tokenizer", "null", "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\":\"Digits\"}", "ByteLevel"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
         "\"behavior\":\"MergedWithNext\"}]}",
         "MergedWithNext"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\",\"invert\":false}",
         "intersection"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0}}", "merges"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.5}", "dropout"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", "id"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}", "vocab"},
        {"added_tokens", "[{\"id\":5,\"content\":\"new\\u0007\"}]", "id 5"},
        {"added_tokens", "[{\"id\":5}]", "content"},
        {"added_tokens", "[{\"id\":300,\"content\":\"new\"}]", "vocab_size 300"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *root = base_new();
        set(root, rows[i].key, rows[i].json);
        struct tokenizer *tokenizer;
        struct kvf_err err = {""};
        int rc = try_open(root, &tokenizer, &err);
        ck_assert_msg(rc < 0 && tokenizer == NULL, "row %zu was taken", i);
        ck_assert_msg(strstr(err.text, rows[i].word) != NULL && strstr(err.text, "tokenizer.json") != NULL,
                      "row %zu: %s", i, err.text);
        ck_assert_ptr_null(strchr(err.text, '\a'));
    }
}
END_TEST

START_TEST(template_that_is_not_known)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *config = json_pack("{s:s}", "chat_template", "{{ something else }}");
    ck_assert_int_eq(json_dump_file(config, path, 0), 0);
    json_decref(config);
    struct tokenizer *tokenizer = opened(base_new());
    unlink(path);
    struct kvf_err err = {""};
    char *text;
    ck_assert_ptr_null(chat_family(tokenizer));
    ck_assert_int_eq(chat_render(tokenizer, "auto", "x", &text, &err), KVF_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "kvfleet-tiny"));
    ck_assert_int_eq(chat_render(tokenizer, "nonsense", "x", &text, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "nonsense"));
    ck_assert_int_eq(chat_render(tokenizer, "kvfleet-tiny", "x", &text, &err), KVF_OK);
    ck_assert_str_eq(text, "<|user|>x<|assistant|><think>\n");
    free(text);
    tokenizer_close(&tokenizer);
}
END_TEST

int main(void)
{
    if (mkdtemp(folder) == NULL) return EXIT_FAILURE;
    TCase *tcase = tcase_create("tokenizer");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, merges_by_rank);
    tcase_add_test(tcase, a_megabyte_of_one_letter);
    tcase_add_test(tcase, ill_formed_bytes_become_replacements);
    tcase_add_test(tcase, added_tokens);
    tcase_add_test(tcase, pretokenizers);
    tcase_add_test(tcase, postprocessor_adds_ends);
    tcase_add_test(tcase, detokenising_holds_back);
    tcase_add_test(tcase, what_is_not_supported_is_named);
    tcase_add_test(tcase, template_that_is_not_known);
    Suite *suite = suite_create("tokenizer");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    rmdir(folder);
    return failed > 0;
}
