/* tokenizer.c: opening and closing, token look-up, detokenisation. */
#include "engine/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include "engine/model/filemap.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/utf8.h"

int tokenizer_open(const char *folder, int vocab, struct tokenizer **out, struct kvf_err *err)
{
    *out = NULL;
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", folder);
    struct tokenizer_source source = {.folder = folder, .vocab = vocab, .err = err};
    int rc = json_read(folder, "tokenizer.json", &source.root, err);
    if (rc == KVF_OK) rc = pipeline_load(tokenizer, &source);
    if (rc == KVF_OK) rc = chat_load(tokenizer, &source);
    json_decref(source.root);
    if (rc != KVF_OK) {
        tokenizer_close(&tokenizer);
        return rc;
    }
    *out = tokenizer;
    return KVF_OK;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    if (*tokenizer == NULL) return;
    pipeline_free(*tokenizer);
    vocab_free(*tokenizer);
    free((*tokenizer)->bos_text);
    free((*tokenizer)->chat_template);
    free(*tokenizer);
    *tokenizer = NULL;
}

int32_t tokenizer_token_id(const struct tokenizer *tokenizer, const char *text)
{
    return textmap_find(tokenizer, text, strlen(text));
}

int tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->count && tokenizer->token[id].special;
}

const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len)
{
    int known = id >= 0 && id < tokenizer->count && tokenizer->token[id].text != NULL;
    *len = known ? (size_t)tokenizer->token[id].bytes_len : 0;
    return known ? tokenizer->token[id].bytes : "";
}

/* The reference decoder takes ED followed by A0...BF for the beginning of a surrogate and waits for the third byte,
 * although no character begins so. */
static int surrogate_begun(const char *text, size_t len)
{
    return len == 2 && (unsigned char)text[0] == 0xed && ((unsigned char)text[1] & 0xe0) == 0xa0;
}

int detok_feed(struct detok *detok, const struct tokenizer *tokenizer, int32_t id, char *out, size_t cap)
{
    size_t len;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &len);
    out[0] = '\0';
    if (detok->skip_special && tokenizer_is_special(tokenizer, id)) return 0;
    char text[sizeof detok->pending + TOKEN_MAX_BYTES];
    size_t size = (size_t)detok->pending_len, at = 0, written = 0;
    memcpy(text, detok->pending, size);
    memcpy(text + size, bytes, len);
    size += len;
    while (at < size) {
        enum utf8_kind kind;
        int step = utf8_step(text + at, size - at, &kind);
        if (kind == UTF8_INCOMPLETE || surrogate_begun(text + at, size - at)) break;
        size_t take = kind == UTF8_CHARACTER ? (size_t)step : utf8_repaired_size(text + at, (size_t)step);
        if (written + take >= cap) break;
        utf8_repair(text + at, (size_t)step, out + written);
        written += take;
        at += (size_t)step;
    }
    detok->pending_len = (int)(size - at < sizeof detok->pending ? size - at : 0);
    memcpy(detok->pending, text + at, (size_t)detok->pending_len);
    out[written] = '\0';
    return (int)written;
}

int detok_flush(struct detok *detok, char *out, size_t cap)
{
    size_t size = utf8_repaired_size(detok->pending, (size_t)detok->pending_len);
    if (size < cap)
        utf8_repair(detok->pending, (size_t)detok->pending_len, out);
    else
        size = 0;
    out[size] = '\0';
    detok->pending_len = 0;
    return (int)size;
}
