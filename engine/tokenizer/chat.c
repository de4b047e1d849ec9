/* chat.c: the prompt that a family's chat template makes of one user message.
 *
 * Templates are Jinja programs; none is run here. A family is a row: texts that its template has and others that it
 * lacks, and what it puts before and after the message. A template that no row fits is refused, not guessed at.
 */
#include <stdlib.h>
#include <string.h>
#include "engine/model/filemap.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/utf8.h"

struct family {
    const char *name;
    const char *has[4], *lacks[3]; /* NULL ends */
    int bos;                       /* begins with bos_token */
    int trim;                      /* white space around the message is dropped */
    const char *before, *after;
};

/* Inside a template's own string literals a line break is a backslash and an n. */
static const struct family families[] = {
    {
        .name = "kvfleet-tiny",
        .has = {"<|user|>{{ m['content'] }}", "<|assistant|><think>\n"},
        .before = "<|user|>",
        .after = "<|assistant|><think>\n",
    },
    {
        .name = "r1-distill",
        .has = {"<｜User｜>", "<｜Assistant｜><think>\\n"},
        .bos = 1,
        .before = "<｜User｜>",
        .after = "<｜Assistant｜><think>\n",
    },
    {
        .name = "qwen2.5",
        .has = {"<|im_start|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
        .before = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
                  "<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
    },
    {
        .name = "smollm2",
        .has = {"<|im_start|>", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
        .before = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                  "<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
    },
    {
        .name = "qwen3",
        .has = {"<|im_start|>assistant\\n", "enable_thinking"},
        .lacks = {"You are"},
        .before = "<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
    },
    {
        .name = "chatml",
        .has = {"<|im_start|>' + m", "<|im_end|>", "<|im_start|>assistant\\n"},
        .lacks = {"system", "think"},
        .before = "<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
    },
    {
        .name = "llama-3.1",
        .has = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023", "26 Jul 2024"},
        .lacks = {"strftime_now"},
        .bos = 1,
        .trim = 1,
        .before = "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
                  "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
        .after = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    },
};
#define FAMILY_COUNT (sizeof families / sizeof *families)

static const struct family *family_of_template(const char *template)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        int fits = 1;
        for (const char *const *text = families[i].has; *text != NULL; text++) fits &= strstr(template, *text) != NULL;
        for (const char *const *text = families[i].lacks; *text != NULL; text++)
            fits &= strstr(template, *text) == NULL;
        if (fits) return &families[i];
    }
    return NULL;
}

static const struct family *family_named(const char *name)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(families[i].name, name) == 0) return &families[i];
    return NULL;
}

/* A string, or an added token written as an object. */
static const char *token_text(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* A string, or the one named "default" of a list of named templates. */
static const char *template_text(const json_t *value)
{
    size_t index;
    json_t *item;
    json_array_foreach(value, index, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name != NULL && strcmp(name, "default") == 0) return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(value);
}

static int template_file_load(struct tokenizer *tokenizer, const struct tokenizer_source *source)
{
    static const char name[] = "chat_template.jinja";
    if (!filemap_exists(source->folder, name)) return KVF_OK;
    struct filemap map;
    int rc = filemap_open(source->folder, name, &map, source->err);
    if (rc != KVF_OK) return rc;
    free(tokenizer->chat_template);
    tokenizer->chat_template = strndup(map.size > 0 ? (const char *)map.data : "", (size_t)map.size);
    filemap_close(&map);
    return KVF_OK;
}

int chat_load(struct tokenizer *tokenizer, const struct tokenizer_source *source)
{
    static const char name[] = "tokenizer_config.json";
    if (filemap_exists(source->folder, name)) {
        json_t *config;
        int rc = json_read(source->folder, name, &config, source->err);
        if (rc != KVF_OK) return rc;
        const char *bos = token_text(json_object_get(config, "bos_token"));
        const char *template = template_text(json_object_get(config, "chat_template"));
        tokenizer->bos_text = bos == NULL ? NULL : strdup(bos);
        tokenizer->chat_template = template == NULL ? NULL : strdup(template);
        int lost =
            (bos != NULL && tokenizer->bos_text == NULL) || (template != NULL && tokenizer->chat_template == NULL);
        json_decref(config);
        if (lost) return kvf_fail(source->err, KVF_ENOMEM, "%s/%s: out of memory", source->folder, name);
    }
    int rc = template_file_load(tokenizer, source);
    if (rc != KVF_OK) return rc;
    if (tokenizer->chat_template == NULL) {
        tokenizer->chat_family = "raw";
    } else {
        const struct family *family = family_of_template(tokenizer->chat_template);
        tokenizer->chat_family = family == NULL ? NULL : family->name;
    }
    return KVF_OK;
}

const char *chat_family(const struct tokenizer *tokenizer)
{
    return tokenizer->chat_family;
}

static char *family_names(char *text, size_t cap)
{
    size_t at = (size_t)snprintf(text, cap, "raw");
    for (size_t i = 0; i < FAMILY_COUNT && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, ", %s", families[i].name);
    return text;
}

static int is_trimmed(int32_t c)
{
    return utf8_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

/* Python's str.strip: moves *text to the first and returns the length up to the last character that is not space. */
static size_t trim(const char **text)
{
    size_t len = strlen(*text), end = 0;
    const char *first = NULL;
    for (size_t at = 0; at < len;) {
        enum utf8_kind kind;
        int step = utf8_step(*text + at, len - at, &kind);
        int space = kind == UTF8_CHARACTER && is_trimmed(utf8_code_point(*text + at, step));
        if (!space && first == NULL) first = *text + at;
        at += (size_t)step;
        end = space ? end : at;
    }
    if (first == NULL) return 0;
    end -= (size_t)(first - *text);
    *text = first;
    return end;
}

int chat_render(const struct tokenizer *tokenizer, const char *template_name, const char *user, char **text,
                struct kvf_err *err)
{
    *text = NULL;
    char known[256];
    int automatic = strcmp(template_name, "auto") == 0;
    const char *name = automatic ? tokenizer->chat_family : template_name;
    if (name == NULL)
        return kvf_fail(err, KVF_EUNSUPPORTED,
                        "chat template of the model is not one that is known, expected a template name: %s",
                        family_names(known, sizeof known));
    const struct family *family = family_named(name);
    if (family == NULL && strcmp(name, "raw") != 0)
        return kvf_fail(err, KVF_EINVAL, "chat template \"%.80s\" is not known, expected auto, %s", name,
                        family_names(known, sizeof known));
    const char *bos = "", *before = "", *after = "";
    size_t len = strlen(user);
    if (family != NULL) {
        if (family->bos && tokenizer->bos_text == NULL)
            return kvf_fail(err, KVF_EINVAL, "chat template %s: bos_token is missing in tokenizer_config.json", name);
        bos = family->bos ? tokenizer->bos_text : "";
        before = family->before;
        after = family->after;
        len = family->trim ? trim(&user) : len;
    }
    size_t size = strlen(bos) + strlen(before) + len + strlen(after) + 1;
    *text = malloc(size);
    if (*text == NULL) return kvf_fail(err, KVF_ENOMEM, "chat template %s: out of memory", name);
    char *at = stpcpy(stpcpy(*text, bos), before);
    memcpy(at, user, len);
    stpcpy(at + len, after);
    return KVF_OK;
}

int chat_has_bos(const struct tokenizer *tokenizer, const char *text)
{
    if (tokenizer->before_count == 0) return 0;
    const struct token *bos = &tokenizer->token[tokenizer->before[0]];
    return strncmp(text, bos->text, (size_t)bos->text_len) == 0;
}
