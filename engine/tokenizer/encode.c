/* encode.c: text to ids.
 *
 * In this order: ill-formed bytes become U+FFFD; added tokens that are not normalised are cut out; what is between them
 * is normalised; the other added tokens are cut out; the rest goes through the pre-tokenizer's steps into words and
 * from words through the merges into ids.
 */
#include <stdlib.h>
#include <string.h>
#include "engine/model/filemap.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/utf8.h"

/* Merging keeps positions as int with room to spare. */
#define TEXT_MAX_BYTES (256u << 20)

struct encoder {
    const struct tokenizer *tokenizer;
    struct regex_scratch *regex;
    struct bpe_scratch bpe;
    struct ids ids;
    struct kvf_err *err;
};

static int no_memory(struct encoder *encoder)
{
    return kvf_fail(encoder->err, KVF_ENOMEM, "text: out of memory");
}

static int stage_run(struct encoder *encoder, int stage, const char *text, size_t len);

static int stage_split(struct encoder *encoder, int index, const char *text, size_t len)
{
    const struct stage *stage = &encoder->tokenizer->stage[index];
    size_t done = 0, from = 0;
    while (from <= len) {
        size_t start, end;
        int rc = regex_match(stage->regex, encoder->regex, text, len, from, &start, &end, encoder->err);
        if (rc < 0) return rc;
        if (rc == 0) break;
        rc = stage_run(encoder, index + 1, text + done, start - done);
        if (rc == KVF_OK && stage->kind == STAGE_SPLIT_ISOLATED)
            rc = stage_run(encoder, index + 1, text + start, end - start);
        if (rc != KVF_OK) return rc;
        done = from = end;
        if (start == end && from < len) { /* an empty match: look on behind the next character */
            enum utf8_kind kind;
            from += (size_t)utf8_step(text + from, len - from, &kind);
        } else if (start == end) {
            break;
        }
    }
    return stage_run(encoder, index + 1, text + done, len - done);
}

static int stage_run(struct encoder *encoder, int stage, const char *text, size_t len)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (len == 0) return KVF_OK;
    if (stage == tokenizer->stage_count)
        return bpe_word(tokenizer, &encoder->bpe, text, len, &encoder->ids) == KVF_OK ? KVF_OK : no_memory(encoder);
    if (tokenizer->stage[stage].kind != STAGE_PREFIX_SPACE) return stage_split(encoder, stage, text, len);
    if (text[0] == ' ') return stage_run(encoder, stage + 1, text, len);
    char *spaced = malloc(len + 1);
    if (spaced == NULL) return no_memory(encoder);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, len);
    int rc = stage_run(encoder, stage + 1, spaced, len + 1);
    free(spaced);
    return rc;
}

static size_t character_before(const char *text, size_t at)
{
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static int code_point_at(const char *text, size_t len, size_t at, int *step)
{
    enum utf8_kind kind;
    *step = utf8_step(text + at, len - at, &kind);
    return utf8_code_point(text + at, *step);
}

static int stands_alone(const char *text, size_t len, size_t start, size_t end)
{
    int step;
    if (start > 0 && utf8_is_word(code_point_at(text, len, character_before(text, start), &step))) return 0;
    return end == len || !utf8_is_word(code_point_at(text, len, end, &step));
}

static const struct added_token *added_match(const struct added_set *set, const char *text, size_t len)
{
    unsigned char byte = (unsigned char)text[0];
    for (int i = set->first[byte]; i < set->first[byte + 1]; i++)
        if (set->token[i].len <= len && memcmp(set->token[i].content, text, set->token[i].len) == 0)
            return &set->token[i];
    return NULL;
}

/* Cuts the set's tokens out of text[len], leftmost and longest first; what is between goes to `rest`. */
static int added_run(struct encoder *encoder, const struct added_set *set, const char *text, size_t len,
                     int (*rest)(struct encoder *, const char *, size_t))
{
    size_t done = 0;
    for (size_t at = 0; at < len && set->count > 0;) {
        const struct added_token *token = added_match(set, text + at, len - at);
        if (token == NULL) {
            at++;
            continue;
        }
        size_t start = at, end = at + token->len;
        at = end;
        if (token->single_word && !stands_alone(text, len, start, end)) continue;
        int step;
        if (token->lstrip)
            for (size_t before; start > done; start = before) {
                before = character_before(text, start);
                if (!utf8_is_space(code_point_at(text, len, before, &step))) break;
            }
        if (token->rstrip)
            while (end < len && utf8_is_space(code_point_at(text, len, end, &step))) end += (size_t)step;
        int rc = start > done ? rest(encoder, text + done, start - done) : KVF_OK;
        if (rc != KVF_OK) return rc;
        if (ids_push(&encoder->ids, token->id) != KVF_OK) return no_memory(encoder);
        done = end;
    }
    return done < len ? rest(encoder, text + done, len - done) : KVF_OK;
}

static int words_run(struct encoder *encoder, const char *text, size_t len)
{
    return stage_run(encoder, 0, text, len);
}

static int normalized_run(struct encoder *encoder, const char *text, size_t len)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (!tokenizer->normalize_nfc) return added_run(encoder, &tokenizer->added_normalized, text, len, words_run);
    size_t nfc_len;
    char *nfc = text_nfc(text, len, &nfc_len);
    if (nfc == NULL) return no_memory(encoder);
    int rc = added_run(encoder, &tokenizer->added_normalized, nfc, nfc_len, words_run);
    free(nfc);
    return rc;
}

static int ids_add(struct encoder *encoder, const int32_t *list, int count)
{
    for (int i = 0; i < count; i++)
        if (ids_push(&encoder->ids, list[i]) != KVF_OK) return no_memory(encoder);
    return KVF_OK;
}

static int encode(struct encoder *encoder, const char *text, size_t len, int add_special)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    char *repaired = NULL;
    size_t size = utf8_repaired_size(text, len);
    int rc = add_special ? ids_add(encoder, tokenizer->before, tokenizer->before_count) : KVF_OK;
    encoder->regex = regex_scratch_new();
    repaired = malloc(size + 1);
    if (encoder->regex == NULL || repaired == NULL) rc = no_memory(encoder);
    if (rc == KVF_OK) {
        utf8_repair(text, len, repaired);
        rc = added_run(encoder, &tokenizer->added_raw, repaired, size, normalized_run);
    }
    if (rc == KVF_OK && add_special) rc = ids_add(encoder, tokenizer->after, tokenizer->after_count);
    free(repaired);
    regex_scratch_free(&encoder->regex);
    bpe_scratch_free(&encoder->bpe);
    return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len, int add_special, int32_t **ids,
                     int *count, struct kvf_err *err)
{
    *ids = NULL;
    *count = 0;
    if (len > TEXT_MAX_BYTES)
        return kvf_fail(err, KVF_EINVAL, "text: %zu bytes, at most %u are taken", len, TEXT_MAX_BYTES);
    struct encoder encoder = {.tokenizer = tokenizer, .err = err};
    encoder.ids.id = malloc(64 * sizeof *encoder.ids.id);
    if (encoder.ids.id == NULL) return no_memory(&encoder);
    encoder.ids.room = 64;
    int rc = encode(&encoder, text, len, add_special);
    if (rc != KVF_OK) {
        free(encoder.ids.id);
        return rc;
    }
    *ids = encoder.ids.id;
    *count = encoder.ids.count;
    return KVF_OK;
}
