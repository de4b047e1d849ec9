/* vocab.c: tokens, merges and added tokens of tokenizer.json. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model/filemap.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/utf8.h"

#define FILE_NAME "tokenizer.json"

/* The byte-level alphabet: bytes that print stand for themselves, the others for U+0100 and up, in order. */
static int32_t alphabet_code_point(int byte)
{
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) return byte;
    if (byte < 0x21) return 0x100 + byte;
    return byte < 0xa1 ? 0x100 + 0x21 + byte - 0x7f : 0x100 + 0x21 + 0xa1 - 0x7f;
}

/* The byte that a code point stands for, -1: none. */
static int alphabet_byte(int32_t code_point)
{
    for (int byte = 0; byte < 256 && code_point < 0x144; byte++)
        if (alphabet_code_point(byte) == code_point) return byte;
    return -1;
}

static int alphabet_write(int byte, char *out)
{
    int32_t c = alphabet_code_point(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* Bytes of a token's text; a text with a character outside the alphabet stands for itself. out: room for len bytes. */
static int text_bytes(const char *text, int len, const short byte_of[0x144], char *out)
{
    int count = 0;
    for (int i = 0; i < len;) {
        enum utf8_kind kind;
        int step = utf8_step(text + i, (size_t)(len - i), &kind);
        int32_t c = utf8_code_point(text + i, step);
        int byte = c < 0x144 ? byte_of[c] : -1;
        if (byte < 0) {
            memcpy(out, text, (size_t)len);
            return len;
        }
        out[count++] = (char)byte;
        i += step;
    }
    return count;
}

static uint64_t text_hash(const char *text, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static size_t slots_for(size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

int32_t textmap_find(const struct tokenizer *tokenizer, const char *text, size_t len)
{
    const struct textmap *map = &tokenizer->ids;
    for (size_t at = text_hash(text, len) & (map->slots - 1); map->id[at] >= 0; at = (at + 1) & (map->slots - 1)) {
        const struct token *token = &tokenizer->token[map->id[at]];
        if ((size_t)token->text_len == len && memcmp(token->text, text, len) == 0) return map->id[at];
    }
    return -1;
}

/* A token of the model's vocabulary by its text, or -1. */
static int32_t vocab_find(const struct tokenizer *tokenizer, const char *text, size_t len)
{
    int32_t id = textmap_find(tokenizer, text, len);
    return id >= 0 && tokenizer->token[id].in_vocab ? id : -1;
}

static void textmap_add(struct tokenizer *tokenizer, int32_t id)
{
    struct textmap *map = &tokenizer->ids;
    const struct token *token = &tokenizer->token[id];
    size_t at = text_hash(token->text, (size_t)token->text_len) & (map->slots - 1);
    while (map->id[at] >= 0) at = (at + 1) & (map->slots - 1);
    map->id[at] = id;
}

static size_t merge_slot(const struct mergemap *map, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (map->slots - 1);
    while (map->slot[at].left >= 0 && (map->slot[at].left != left || map->slot[at].right != right))
        at = (at + 1) & (map->slots - 1);
    return at;
}

const struct merge *merge_find(const struct tokenizer *tokenizer, int32_t left, int32_t right)
{
    const struct merge *merge = &tokenizer->merges.slot[merge_slot(&tokenizer->merges, left, right)];
    return merge->left >= 0 ? merge : NULL;
}

int32_t vocab_word_id(const struct tokenizer *tokenizer, const char *bytes, size_t len)
{
    char text[2 * TOKEN_MAX_BYTES];
    if (len > TOKEN_MAX_BYTES) return -1;
    size_t size = 0;
    for (size_t i = 0; i < len; i++) size += (size_t)alphabet_write((unsigned char)bytes[i], text + size);
    return vocab_find(tokenizer, text, size);
}

static int id_check(const struct tokenizer_source *source, const char *what, const char *text, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0)
        return kvf_fail(source->err, KVF_EINVAL,
                        "%s/" FILE_NAME ": %s \"%.80s\": id: expected an integer of 0 or more, got %s", source->folder,
                        what, text, json_is_integer(id) ? "a negative one" : json_kind(id));
    if (json_integer_value(id) >= source->vocab)
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": %s \"%.80s\": id %lld is not below vocab_size %d",
                        source->folder, what, text, (long long)json_integer_value(id), source->vocab);
    return KVF_OK;
}

/* Fills token `id`; the arena behind *at has room. */
static int token_set(struct tokenizer *tokenizer, const struct tokenizer_source *source, int32_t id, const char *text,
                     const short byte_of[0x144], char **at)
{
    struct token *token = &tokenizer->token[id];
    if (token->text != NULL)
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": two tokens have id %d: \"%.80s\" and \"%.80s\"",
                        source->folder, id, token->text, text);
    token->text_len = (int)strlen(text);
    token->text = memcpy(*at, text, (size_t)token->text_len + 1);
    *at += token->text_len + 1;
    token->bytes = *at;
    token->bytes_len = text_bytes(text, token->text_len, byte_of, *at);
    *at += token->bytes_len;
    if (utf8_repaired_size(token->bytes, (size_t)token->bytes_len) > TOKEN_MAX_BYTES)
        return kvf_fail(source->err, KVF_EUNSUPPORTED, "%s/" FILE_NAME ": token %d: more than %d bytes", source->folder,
                        id, TOKEN_MAX_BYTES);
    textmap_add(tokenizer, id);
    return KVF_OK;
}

static int tokens_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, json_t *vocab, json_t *added)
{
    size_t total = 1, entries = json_object_size(vocab) + json_array_size(added), index;
    const char *text;
    json_t *value, *entry;
    int highest = -1;
    json_object_foreach(vocab, text, value)
    {
        int rc = id_check(source, "token", text, value);
        if (rc != KVF_OK) return rc;
        total += 2 * strlen(text) + 1;
        highest = json_integer_value(value) > highest ? (int)json_integer_value(value) : highest;
    }
    json_array_foreach(added, index, entry)
    {
        text = json_string_value(json_object_get(entry, "content"));
        value = json_object_get(entry, "id");
        if (text == NULL)
            return kvf_fail(source->err, KVF_EINVAL,
                            "%s/" FILE_NAME ": added_tokens[%zu]: expected an object with content and id",
                            source->folder, index);
        int rc = id_check(source, "added token", text, value);
        if (rc != KVF_OK) return rc;
        total += 2 * strlen(text) + 1;
        highest = json_integer_value(value) > highest ? (int)json_integer_value(value) : highest;
    }
    tokenizer->count = highest + 1;
    tokenizer->token = calloc((size_t)tokenizer->count + 1, sizeof *tokenizer->token);
    tokenizer->arena = malloc(total);
    tokenizer->ids.slots = slots_for(entries);
    tokenizer->ids.id = malloc(tokenizer->ids.slots * sizeof *tokenizer->ids.id);
    if (tokenizer->token == NULL || tokenizer->arena == NULL || tokenizer->ids.id == NULL)
        return kvf_fail(source->err, KVF_ENOMEM, "%s/" FILE_NAME ": out of memory for %zu tokens", source->folder,
                        entries);
    memset(tokenizer->ids.id, 0xff, tokenizer->ids.slots * sizeof *tokenizer->ids.id);
    short byte_of[0x144];
    for (int c = 0; c < 0x144; c++) byte_of[c] = (short)alphabet_byte(c);
    char *at = tokenizer->arena;
    json_object_foreach(vocab, text, value)
    {
        int rc = token_set(tokenizer, source, (int32_t)json_integer_value(value), text, byte_of, &at);
        if (rc != KVF_OK) return rc;
        tokenizer->token[json_integer_value(value)].in_vocab = 1;
    }
    json_array_foreach(added, index, entry)
    {
        text = json_string_value(json_object_get(entry, "content"));
        int32_t id = (int32_t)json_integer_value(json_object_get(entry, "id"));
        int32_t known = textmap_find(tokenizer, text, strlen(text));
        int rc = KVF_OK;
        if (known >= 0 && known != id)
            rc = kvf_fail(source->err, KVF_EINVAL,
                          "%s/" FILE_NAME ": added token \"%.80s\": id %d, but the vocabulary gives it %d",
                          source->folder, text, id, known);
        else if (known < 0)
            rc = token_set(tokenizer, source, id, text, byte_of, &at);
        if (rc != KVF_OK) return rc;
        tokenizer->token[id].special = json_is_true(json_object_get(entry, "special"));
    }
    for (int byte = 0; byte < 256; byte++) {
        char one[2];
        tokenizer->byte_id[byte] = vocab_find(tokenizer, one, (size_t)alphabet_write(byte, one));
    }
    return KVF_OK;
}

/* One merge as its two parts: "a b" or ["a", "b"]; 0 when it is neither. */
static int merge_parts(const json_t *merge, const char **left, size_t *left_len, const char **right, size_t *right_len)
{
    const char *text = json_string_value(merge);
    if (text != NULL) {
        const char *space = strchr(text, ' ');
        if (space == NULL || space == text || space[1] == '\0' || strchr(space + 1, ' ') != NULL) return 0;
        *left = text;
        *left_len = (size_t)(space - text);
        *right = space + 1;
    } else {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        if (json_array_size(merge) != 2 || *left == NULL || *right == NULL) return 0;
        *left_len = strlen(*left);
    }
    *right_len = strlen(*right);
    return *left_len > 0 && *right_len > 0;
}

static int merges_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, json_t *merges)
{
    size_t count = json_array_size(merges), index;
    struct mergemap *map = &tokenizer->merges;
    map->slots = slots_for(count);
    map->slot = malloc(map->slots * sizeof *map->slot);
    if (map->slot == NULL || count > INT32_MAX)
        return kvf_fail(source->err, KVF_ENOMEM, "%s/" FILE_NAME ": out of memory for %zu merges", source->folder,
                        count);
    for (size_t i = 0; i < map->slots; i++) map->slot[i].left = -1;
    json_t *merge;
    json_array_foreach(merges, index, merge)
    {
        const char *left, *right;
        size_t left_len, right_len;
        if (!merge_parts(merge, &left, &left_len, &right, &right_len)) {
            char *text = json_dumps(merge, JSON_ENCODE_ANY | JSON_COMPACT);
            int rc = kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": merge %zu: expected two parts, got %.120s",
                              source->folder, index, text == NULL ? json_kind(merge) : text);
            free(text);
            return rc;
        }
        char joined[4 * TOKEN_MAX_BYTES];
        int32_t left_id = vocab_find(tokenizer, left, left_len), right_id = vocab_find(tokenizer, right, right_len);
        int32_t id = -1;
        if (left_len + right_len <= sizeof joined) {
            memcpy(joined, left, left_len);
            memcpy(joined + left_len, right, right_len);
            id = vocab_find(tokenizer, joined, left_len + right_len);
        }
        if (left_id < 0 || right_id < 0 || id < 0)
            return kvf_fail(source->err, KVF_EINVAL,
                            "%s/" FILE_NAME ": merge %zu of \"%.*s\" and \"%.*s\": %s not in the vocabulary",
                            source->folder, index, (int)(left_len < 80 ? left_len : 80), left,
                            (int)(right_len < 80 ? right_len : 80), right,
                            left_id < 0    ? "the first is"
                            : right_id < 0 ? "the second is"
                                           : "the two joined are");
        map->slot[merge_slot(map, left_id, right_id)] = (struct merge){left_id, right_id, (int32_t)index, id};
    }
    return KVF_OK;
}

static int added_order(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    int first = (unsigned char)a->content[0] - (unsigned char)b->content[0];
    if (first != 0) return first;
    return a->len != b->len ? (a->len > b->len ? -1 : 1) : strcmp(a->content, b->content);
}

static int added_set_load(struct added_set *set, const struct tokenizer_source *source, json_t *added, int normalized,
                          int nfc)
{
    size_t index;
    json_t *entry;
    set->token = calloc(json_array_size(added) + 1, sizeof *set->token);
    if (set->token == NULL) return kvf_fail(source->err, KVF_ENOMEM, "%s/" FILE_NAME ": out of memory", source->folder);
    json_array_foreach(added, index, entry)
    {
        if (json_is_true(json_object_get(entry, "normalized")) != normalized) continue;
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content[0] == '\0') continue;
        struct added_token *token = &set->token[set->count];
        token->len = strlen(content);
        token->content = normalized && nfc ? text_nfc(content, token->len, &token->len) : strdup(content);
        if (token->content == NULL)
            return kvf_fail(source->err, KVF_ENOMEM, "%s/" FILE_NAME ": out of memory", source->folder);
        token->id = (int32_t)json_integer_value(json_object_get(entry, "id"));
        token->single_word = json_is_true(json_object_get(entry, "single_word"));
        token->lstrip = json_is_true(json_object_get(entry, "lstrip"));
        token->rstrip = json_is_true(json_object_get(entry, "rstrip"));
        set->count++;
    }
    qsort(set->token, (size_t)set->count, sizeof *set->token, added_order);
    for (int byte = 0, at = 0; byte <= 256; byte++) {
        while (at < set->count && (unsigned char)set->token[at].content[0] < byte) at++;
        set->first[byte] = at;
    }
    return KVF_OK;
}

/* What a BPE model may ask for that is not computed here. */
static int model_refuse(const struct tokenizer_source *source, json_t *model)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": model: expected an object, got %s", source->folder,
                        json_kind(model));
    if (type == NULL || strcmp(type, "BPE") != 0)
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": model type %.80s is not supported, expected BPE", source->folder,
                        type == NULL ? "(none)" : type);
    for (int i = 0; i < 2; i++) {
        const char *text = json_string_value(json_object_get(model, texts[i]));
        if (text != NULL && text[0] != '\0')
            return kvf_fail(source->err, KVF_EUNSUPPORTED,
                            "%s/" FILE_NAME ": model.%s \"%.40s\" is not supported, expected null", source->folder,
                            texts[i], text);
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": model.dropout is not supported, expected null", source->folder);
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": model.byte_fallback is not supported, expected false", source->folder);
    return KVF_OK;
}

int vocab_load(struct tokenizer *tokenizer, const struct tokenizer_source *source)
{
    json_t *model = json_object_get(source->root, "model"), *added = json_object_get(source->root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    int rc = model_refuse(source, model);
    if (rc != KVF_OK) return rc;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return kvf_fail(source->err, KVF_EINVAL,
                        "%s/" FILE_NAME ": model.vocab: expected an object with tokens, got %s", source->folder,
                        json_kind(vocab));
    if (!json_is_array(merges))
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": model.merges: expected an array, got %s",
                        source->folder, json_kind(merges));
    if (added != NULL && !json_is_null(added) && !json_is_array(added))
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": added_tokens: expected an array, got %s",
                        source->folder, json_kind(added));
    rc = tokens_load(tokenizer, source, vocab, added);
    if (rc != KVF_OK) return rc;
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    for (int byte = 0; byte < 256 && unknown != NULL && unknown[0] != '\0'; byte++)
        if (tokenizer->byte_id[byte] < 0)
            return kvf_fail(source->err, KVF_EUNSUPPORTED,
                            "%s/" FILE_NAME
                            ": model.unk_token \"%.40s\" with a vocabulary that lacks byte 0x%02x is not supported",
                            source->folder, unknown, byte);
    tokenizer->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    rc = merges_load(tokenizer, source, merges);
    if (rc == KVF_OK) rc = added_set_load(&tokenizer->added_raw, source, added, 0, 0);
    if (rc == KVF_OK) rc = added_set_load(&tokenizer->added_normalized, source, added, 1, tokenizer->normalize_nfc);
    return rc;
}

static void added_set_free(struct added_set *set)
{
    for (int i = 0; i < set->count; i++) free(set->token[i].content);
    free(set->token);
}

void vocab_free(struct tokenizer *tokenizer)
{
    added_set_free(&tokenizer->added_raw);
    added_set_free(&tokenizer->added_normalized);
    free(tokenizer->merges.slot);
    free(tokenizer->ids.id);
    free(tokenizer->arena);
    free(tokenizer->token);
}
