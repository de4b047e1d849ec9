/* tokenizer.h: byte-level BPE as tokenizer.json describes it, exact to the Hugging Face `tokenizers` library.
 * Internal to engine/. Immutable after tokenizer_open; tokenizer_encode may be called from several threads.
 *
 * Pre-tokenizer: ByteLevel and Sequence/Split with the file's own regex (PCRE2, JIT, match limits), NFC where the
 * normalizer asks (utf8proc); added tokens with lstrip/rstrip/normalized/single_word; `ignore_merges`; merges as
 * strings or pairs. Anything else in the file is refused by name. Invalid UTF-8 in a text to encode: each offending
 * byte becomes U+FFFD as the reference does when it decodes lossily; it never fails.
 */
#ifndef KVF_TOKENIZER_H
#define KVF_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"

struct tokenizer;

/* `vocab` is the model's vocabulary size: an id at or above it is refused. */
KVF_MUSTCHECK int tokenizer_open(const char *folder, int vocab, struct tokenizer **out, struct kvf_err *err);
void tokenizer_close(struct tokenizer **tokenizer);

/* Ids of text[len] into a malloc'd array that the caller frees. add_special: with the post-processor's BOS/EOS. */
KVF_MUSTCHECK int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len, int add_special,
                                   int32_t **ids, int *count, struct kvf_err *err);

/* Id of an added or vocabulary token by its exact text, -1 if there is none. */
int32_t tokenizer_token_id(const struct tokenizer *tokenizer, const char *text);
int tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* Bytes of one token (not NUL-terminated, may be half a character); an id out of range gives length 0. */
const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* Incremental detokenisation: holds back an unfinished character. Zero-initialise. */
struct detok {
    char pending[8];
    int pending_len;
    int skip_special;
};
/* Feeds one id; the complete characters that became available go to out (NUL-terminated, cap >= 1024 + 16; longer
 * tokens are refused at load). Returns their length. Bytes that can never become a character come out as U+FFFD. */
int detok_feed(struct detok *detok, const struct tokenizer *tokenizer, int32_t id, char *out, size_t cap);
int detok_flush(struct detok *detok, char *out, size_t cap);

/* ---- chat ---- */

/* The prompt text that asks `user` of the model, generation prompt included: the family is recognised from the
 * chat_template in tokenizer_config.json (table in chat.c); `template_name` "auto", "raw" (the text as it is) or a
 * family's name. Returns a malloc'd string in *text; a template that is not known is refused with the known names. */
KVF_MUSTCHECK int chat_render(const struct tokenizer *tokenizer, const char *template_name, const char *user,
                              char **text, struct kvf_err *err);
/* "raw" or the family that "auto" stands for; NULL when the folder has no template that is known. */
const char *chat_family(const struct tokenizer *tokenizer);
/* Whether a rendered prompt already holds the BOS that tokenizer_encode(add_special) would add: encode with
 * add_special = !chat_has_bos, never twice. */
int chat_has_bos(const struct tokenizer *tokenizer, const char *text);

#endif
