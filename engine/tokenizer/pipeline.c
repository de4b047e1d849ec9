/* pipeline.c: normalizer, pre-tokenizer, post-processor and decoder of tokenizer.json. Whatever changes the ids and is
 * not computed here is refused by name. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "engine/model/filemap.h"
#include "engine/tokenizer/internal.h"

#define FILE_NAME "tokenizer.json"

/* GPT-2's pattern, which ByteLevel with use_regex stands for. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

char *text_nfc(const char *text, size_t len, size_t *out_len)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t size =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (size < 0) {
        free(out);
        return NULL;
    }
    *out_len = (size_t)size;
    return (char *)out;
}

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type == NULL ? "(none)" : type;
}

static int type_fail(const struct tokenizer_source *source, const char *what, const char *type, const char *expected)
{
    return kvf_fail(source->err, KVF_EUNSUPPORTED, "%s/" FILE_NAME ": %s type %.80s is not supported, expected %s",
                    source->folder, what, type, expected);
}

static int normalizer_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part)
{
    if (part == NULL || json_is_null(part)) return KVF_OK;
    const char *type = type_of(part);
    if (strcmp(type, "NFC") == 0) {
        tokenizer->normalize_nfc = 1;
        return KVF_OK;
    }
    if (strcmp(type, "Sequence") != 0) return type_fail(source, "normalizer", type, "NFC or Sequence");
    size_t index;
    json_t *item;
    json_array_foreach(json_object_get(part, "normalizers"), index, item)
    {
        int rc = normalizer_load(tokenizer, source, item);
        if (rc != KVF_OK) return rc;
    }
    return KVF_OK;
}

static int stage_add(struct tokenizer *tokenizer, const struct tokenizer_source *source, enum stage_kind kind,
                     const char *what, const char *pattern, int literal)
{
    if (tokenizer->stage_count == STAGE_MAX)
        return kvf_fail(source->err, KVF_EUNSUPPORTED, "%s/" FILE_NAME ": pre_tokenizer: more than %d steps",
                        source->folder, STAGE_MAX);
    struct stage *stage = &tokenizer->stage[tokenizer->stage_count];
    stage->kind = kind;
    if (pattern != NULL) {
        char where[512];
        snprintf(where, sizeof where, "%.400s/" FILE_NAME ": pre_tokenizer: %s", source->folder, what);
        int rc = regex_compile(pattern, literal, where, &stage->regex, source->err);
        if (rc != KVF_OK) return rc;
    }
    tokenizer->stage_count++;
    return KVF_OK;
}

static int split_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    if (regex == NULL && (literal == NULL || literal[0] == '\0'))
        return kvf_fail(source->err, KVF_EINVAL,
                        "%s/" FILE_NAME ": pre_tokenizer: Split: pattern: expected Regex or String", source->folder);
    enum stage_kind kind = STAGE_SPLIT_ISOLATED;
    if (behavior != NULL && strcmp(behavior, "Removed") == 0)
        kind = STAGE_SPLIT_REMOVED;
    else if (behavior == NULL || strcmp(behavior, "Isolated") != 0)
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME
                        ": pre_tokenizer: Split: behavior %.40s is not supported, expected Isolated or Removed",
                        source->folder, behavior == NULL ? "(none)" : behavior);
    if (json_is_true(json_object_get(part, "invert")))
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": pre_tokenizer: Split: invert true is not supported, expected false",
                        source->folder);
    return stage_add(tokenizer, source, kind, "Split", regex != NULL ? regex : literal, regex == NULL);
}

/* `ended`: a ByteLevel has been read, after which texts are no longer bytes. */
static int pretokenizer_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part,
                             int *ended)
{
    const char *type = type_of(part);
    if (strcmp(type, "Sequence") == 0) {
        size_t index;
        json_t *item;
        json_array_foreach(json_object_get(part, "pretokenizers"), index, item)
        {
            int rc = pretokenizer_load(tokenizer, source, item, ended);
            if (rc != KVF_OK) return rc;
        }
        return KVF_OK;
    }
    int byte_level = strcmp(type, "ByteLevel") == 0, digits = strcmp(type, "Digits") == 0;
    if (!byte_level && !digits && strcmp(type, "Split") != 0)
        return type_fail(source, "pre-tokenizer", type, "ByteLevel, Split, Digits or Sequence");
    if (*ended)
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": pre-tokenizer %s after ByteLevel is not supported", source->folder, type);
    if (digits)
        return stage_add(tokenizer, source, STAGE_SPLIT_ISOLATED, type,
                         json_is_true(json_object_get(part, "individual_digits")) ? "\\p{N}" : "\\p{N}+", 0);
    if (!byte_level) return split_load(tokenizer, source, part);
    *ended = 1;
    int rc = KVF_OK;
    if (!json_is_false(json_object_get(part, "add_prefix_space")))
        rc = stage_add(tokenizer, source, STAGE_PREFIX_SPACE, type, NULL, 0);
    if (rc == KVF_OK && !json_is_false(json_object_get(part, "use_regex")))
        rc = stage_add(tokenizer, source, STAGE_SPLIT_ISOLATED, type, byte_level_pattern, 0);
    return rc;
}

static int template_ids(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part,
                        const char *name, int32_t **list, int *count)
{
    const json_t *ids = json_object_get(json_object_get(json_object_get(part, "special_tokens"), name), "ids");
    size_t index;
    json_t *value;
    int32_t *grown = realloc(*list, ((size_t)*count + json_array_size(ids) + 1) * sizeof **list);
    if (grown == NULL) return kvf_fail(source->err, KVF_ENOMEM, "%s/" FILE_NAME ": out of memory", source->folder);
    *list = grown;
    if (json_array_size(ids) == 0)
        return kvf_fail(source->err, KVF_EINVAL, "%s/" FILE_NAME ": post_processor: special token \"%.80s\" has no ids",
                        source->folder, name);
    json_array_foreach(ids, index, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= tokenizer->count ||
            tokenizer->token[json_integer_value(value)].text == NULL)
            return kvf_fail(source->err, KVF_EINVAL,
                            "%s/" FILE_NAME ": post_processor: special token \"%.80s\": no token has its id",
                            source->folder, name);
        (*list)[(*count)++] = (int32_t)json_integer_value(value);
    }
    return KVF_OK;
}

static int template_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part)
{
    int texts = 0;
    size_t index;
    json_t *piece;
    json_array_foreach(json_object_get(part, "single"), index, piece)
    {
        const char *special = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        int rc = KVF_OK;
        if (json_object_get(piece, "Sequence") != NULL)
            texts++;
        else if (special == NULL)
            rc = kvf_fail(source->err, KVF_EINVAL,
                          "%s/" FILE_NAME ": post_processor: single[%zu]: expected Sequence or SpecialToken",
                          source->folder, index);
        else if (texts == 0)
            rc = template_ids(tokenizer, source, part, special, &tokenizer->before, &tokenizer->before_count);
        else
            rc = template_ids(tokenizer, source, part, special, &tokenizer->after, &tokenizer->after_count);
        if (rc != KVF_OK) return rc;
    }
    if (texts != 1)
        return kvf_fail(source->err, KVF_EINVAL,
                        "%s/" FILE_NAME ": post_processor: single: expected one Sequence, got %d", source->folder,
                        texts);
    return KVF_OK;
}

static int postprocessor_load(struct tokenizer *tokenizer, const struct tokenizer_source *source, const json_t *part)
{
    if (part == NULL || json_is_null(part)) return KVF_OK;
    const char *type = type_of(part);
    if (strcmp(type, "ByteLevel") == 0) return KVF_OK;
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (tokenizer->before_count + tokenizer->after_count > 0)
            return kvf_fail(source->err, KVF_EUNSUPPORTED,
                            "%s/" FILE_NAME ": post_processor: more than one TemplateProcessing", source->folder);
        return template_load(tokenizer, source, part);
    }
    if (strcmp(type, "Sequence") != 0)
        return type_fail(source, "post-processor", type, "ByteLevel, TemplateProcessing or Sequence");
    size_t index;
    json_t *item;
    json_array_foreach(json_object_get(part, "processors"), index, item)
    {
        int rc = postprocessor_load(tokenizer, source, item);
        if (rc != KVF_OK) return rc;
    }
    return KVF_OK;
}

int pipeline_load(struct tokenizer *tokenizer, const struct tokenizer_source *source)
{
    int rc = normalizer_load(tokenizer, source, json_object_get(source->root, "normalizer"));
    if (rc != KVF_OK) return rc;
    int ended = 0;
    const json_t *pretokenizer = json_object_get(source->root, "pre_tokenizer");
    if (!json_is_object(pretokenizer))
        return kvf_fail(source->err, KVF_EUNSUPPORTED, "%s/" FILE_NAME ": pre_tokenizer: expected an object, got %s",
                        source->folder, json_kind(pretokenizer));
    rc = pretokenizer_load(tokenizer, source, pretokenizer, &ended);
    if (rc != KVF_OK) return rc;
    if (!ended)
        return kvf_fail(source->err, KVF_EUNSUPPORTED,
                        "%s/" FILE_NAME ": pre_tokenizer without ByteLevel is not supported", source->folder);
    const json_t *decoder = json_object_get(source->root, "decoder");
    if (decoder != NULL && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        return type_fail(source, "decoder", type_of(decoder), "ByteLevel");
    rc = vocab_load(tokenizer, source);
    if (rc == KVF_OK) rc = postprocessor_load(tokenizer, source, json_object_get(source->root, "post_processor"));
    return rc;
}

void pipeline_free(struct tokenizer *tokenizer)
{
    for (int i = 0; i < tokenizer->stage_count; i++) regex_free(&tokenizer->stage[i].regex);
    free(tokenizer->before);
    free(tokenizer->after);
}
