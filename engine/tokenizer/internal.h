/* internal.h: what the files of engine/tokenizer share.
 *
 * Texts are raw bytes throughout: the byte-level alphabet of tokenizer.json (one character a byte) exists only at load,
 * where each token's text is turned into the bytes that it stands for.
 */
#ifndef KVF_TOKENIZER_INTERNAL_H
#define KVF_TOKENIZER_INTERNAL_H

#include <jansson.h>
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/tokenizer.h"

#define TOKEN_MAX_BYTES 1024
#define STAGE_MAX       16

/* ---- vocabulary (vocab.c) ---- */

struct token {
    const char *text; /* as the file writes it; NULL: no token has this id */
    const char *bytes;
    int text_len, bytes_len;
    unsigned char special;
    unsigned char in_vocab; /* in the model's vocabulary: words become these, never a token that is only added */
};

/* Open addressing, a power of two slots, at most half full; text -> id. */
struct textmap {
    int32_t *id; /* -1: free */
    size_t slots;
};

struct merge {
    int32_t left, right; /* left < 0: free slot */
    int32_t rank, id;    /* of the merged token */
};

struct mergemap {
    struct merge *slot;
    size_t slots;
};

struct added_token {
    char *content; /* normalised where `normalized` asks for it */
    size_t len;
    int32_t id;
    unsigned char single_word, lstrip, rstrip;
};

/* Added tokens, longest first within a first byte: first[b] is where those that begin with byte b start. */
struct added_set {
    struct added_token *token;
    int count;
    int first[257];
};

/* ---- pipeline (pipeline.c) ---- */

enum stage_kind {
    STAGE_PREFIX_SPACE,   /* a space in front of what does not begin with one */
    STAGE_SPLIT_ISOLATED, /* matches and what is between them */
    STAGE_SPLIT_REMOVED,  /* only what is between matches */
};

struct stage {
    enum stage_kind kind;
    struct regex *regex;
};

struct tokenizer {
    struct token *token; /* [count] */
    int count;
    char *arena; /* texts and bytes of tokens */
    struct textmap ids;
    struct mergemap merges;
    int32_t byte_id[256]; /* -1: the vocabulary lacks it; such a byte is dropped */
    int ignore_merges;
    struct added_set added_raw, added_normalized;
    int normalize_nfc;
    struct stage stage[STAGE_MAX];
    int stage_count;
    int32_t *before, *after; /* ids that the post-processor puts around a text */
    int before_count, after_count;
    char *bos_text; /* bos_token of tokenizer_config.json; NULL: none */
    char *chat_template;
    const char *chat_family;
};

/* A part of tokenizer.json, and where the line of an error goes. */
struct tokenizer_source {
    const char *folder;
    json_t *root;
    int vocab;
    struct kvf_err *err;
};

KVF_MUSTCHECK int vocab_load(struct tokenizer *tokenizer, const struct tokenizer_source *source);
void vocab_free(struct tokenizer *tokenizer);
/* Any token by its text, or -1. */
int32_t textmap_find(const struct tokenizer *tokenizer, const char *text, size_t len);
const struct merge *merge_find(const struct tokenizer *tokenizer, int32_t left, int32_t right);
/* The id of the vocabulary token whose text is bytes[len] in the byte-level alphabet, or -1. */
int32_t vocab_word_id(const struct tokenizer *tokenizer, const char *bytes, size_t len);

KVF_MUSTCHECK int pipeline_load(struct tokenizer *tokenizer, const struct tokenizer_source *source);
void pipeline_free(struct tokenizer *tokenizer);

/* text[len] in Unicode NFC, malloc'd, *out_len bytes; NULL: no memory. */
char *text_nfc(const char *text, size_t len, size_t *out_len);

/* Reads tokenizer_config.json and chat_template.jinja, both optional. */
KVF_MUSTCHECK int chat_load(struct tokenizer *tokenizer, const struct tokenizer_source *source);

/* ---- byte-pair merges (bpe.c) ---- */

struct ids {
    int32_t *id;
    int count, room;
};
KVF_MUSTCHECK int ids_push(struct ids *ids, int32_t id);

struct bpe_symbol {
    int32_t id;
    int prev, next; /* -1: end */
};
struct bpe_scratch {
    struct bpe_symbol *symbol;
    int symbol_room;
    uint64_t *heap; /* rank << 32 | position */
    int heap_count, heap_room;
};
/* Appends the ids of one word. KVF_ENOMEM. */
KVF_MUSTCHECK int bpe_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const char *bytes,
                           size_t len, struct ids *out);
void bpe_scratch_free(struct bpe_scratch *scratch);

#endif
